"""Models in another format than their own, converted once and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from qontext.frame import log
from qontext.frame.disk import raise_disk_error


def mark(files: Iterable[Path]) -> str:
    """What tells these files from others of the same names, without reading them."""
    hashed = hashlib.blake2b(digest_size=8)
    for file in sorted(files):
        # Resolved names of the hub's cache are content hashes; size and time stand for local files.
        real = file.resolve()
        hashed.update(f"{file.name} {real.name} {real.stat().st_size} {real.stat().st_mtime_ns}\n".encode())
    return hashed.hexdigest()


def converted(source: Path, target: Path, last: str, convert: Callable[[Path], None]) -> Path:
    """The folder `target`, written by `convert` if it is not there; whole or not at all.

    `last` is a file without which it is not whole.
    """
    if (target / last).is_file():
        return target
    log.note(f"Converting {source}, once, into {target}.")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        convert(temporary)
        if not target.exists():  # another process may have been faster
            temporary.rename(target)
    except OSError as error:
        if not (target / last).is_file():
            raise_disk_error(error, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target
