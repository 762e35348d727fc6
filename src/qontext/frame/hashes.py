"""Hashes of what is in memory, and of files. The latter are remembered in the user's cache: a file that has not changed is
not read again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qontext.frame.damage import read_json
from qontext.frame.disk import file_hash, file_stamp, replace
from qontext.frame.errors import QontextError

MOST_READ = 512 << 20
"""Bytes that are hashed when a directory is opened: about a second."""
SETTLED = 2.0
"""Seconds after which times of files differ from those of a later change, in every file system."""
MOST_KEPT = 200_000
"""The number of files whose hashes are kept in memory: about 50 MB."""
_read: dict[str, tuple[str, str]] = {}
"""Path → stamp and hash."""
KEPT = 1000
"""The number of directories whose hashes are remembered."""


def digest_of(content: str | bytes, size: int = 16) -> bytes:
    """The BLAKE2b hash of so many bytes, of a text as UTF-8."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return hashlib.blake2b(data, digest_size=size).digest()


def json_digest(value: Any) -> str:
    """The hash of a value as JSON, in hexadecimal digits, independent of the order of its keys."""
    return digest_of(json.dumps(value, sort_keys=True)).hex()


def hash64(text: str) -> int:
    """A 64-bit hash of a text; for a hundred million texts the probability of a collision is 1 in 3,000."""
    return int.from_bytes(digest_of(text, 8), "little")


def content_hash(path: Path) -> str:
    """The hash of a file's content. It is not read again in this process while its stamp is the same, unless it is so new
    that a change may leave the stamp as it is."""
    with contextlib.suppress(OSError):
        stamp, age = file_stamp(path), time.time() - path.stat().st_mtime
        if (known := _read.get(str(path))) is not None and known[0] == stamp:
            return known[1]
        if age > SETTLED:
            if len(_read) >= MOST_KEPT:
                _read.clear()
            _read[str(path)] = (stamp, file_hash(path))
            return _read[str(path)][1]
    return file_hash(path)


def cache_folder(kind: str) -> Path:
    """The folder for data of this kind in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qontext" / kind


def known_hashes(folder: Path, names: Iterable[str], most: int = MOST_READ) -> dict[str, str] | None:
    """Name → hash of the folder's files, which must exist. Only files that changed since they were hashed last are
    read; returns None, and reads nothing, if these have more than `most` bytes."""
    store = _store(folder)
    known = _remembered(store)
    stamps = {name: file_stamp(folder / name) for name in names}
    new = [name for name, stamp in stamps.items() if known.get(name, ("", ""))[0] != stamp]
    if sum((folder / name).stat().st_size for name in new) > most:
        return None
    for name in new:
        known[name] = (stamps[name], file_hash(folder / name))
    if new and store:
        _remember(store, known)
    return {name: known[name][1] for name in stamps}


def read_hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Name → hash of the folder's files, which are all read now, and remembered."""
    store = _store(folder)
    read = {name: (file_stamp(folder / name), file_hash(folder / name)) for name in names}
    if store:
        _remember(store, {**_remembered(store), **read})
    return {name: value for name, (_, value) in read.items()}


def _store(folder: Path) -> Path | None:
    name = digest_of(os.fsencode(folder.resolve())).hex()
    try:
        return cache_folder("hashes") / f"{name}.json"
    except RuntimeError:  # a user without a home
        return None


def _remembered(store: Path | None) -> dict[str, tuple[str, str]]:
    """Name → stamp and hash; nothing if the file is missing or damaged."""
    with contextlib.suppress(QontextError):
        if store:
            return {name: (stamp, value) for name, (stamp, value) in read_json(store, _Known).items()}
    return {}


def _remember(store: Path, known: dict[str, tuple[str, str]]) -> None:
    """Replace the file atomically. A cache that cannot be written is no error: the files are read again."""
    with contextlib.suppress(OSError):
        store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = store.with_name(f".{store.name}.{os.getpid()}")
        written.write_text(json.dumps(known), encoding="utf-8")
        replace(written, store)
        others = sorted(store.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for old in others[:-KEPT]:
            old.unlink()


_Known = dict[str, tuple[str, str]]
