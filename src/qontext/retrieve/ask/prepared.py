"""The directory that a search opens: one of `adapt`, as it is or refreshed first, or one for documents that nobody prepared.

Of documents, the index is in the user's cache, under the hash of their path: they may be read-only, shared or under version
control, and a folder from elsewhere cannot bring an index of its own. Words are indexed before the first answer, and vectors
computed after it, by another process. Later searches index what has changed first.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from qontext.frame import execution, locks, log, trust
from qontext.frame.artifacts import CLAIM, is_artifact
from qontext.frame.config import existing
from qontext.frame.errors import QontextError
from qontext.frame.files import cache_folder, digest_of
from qontext.models.reference import default_encoder
from qontext.retrieve.directory import PLAN, is_adapted, read_adapted

LOG = "vectors.log"
"""The log of the process that computes vectors."""


def is_documents(path: str) -> bool:
    """True for a file or folder that is no output of a verb: documents."""
    place = Path(path).expanduser()
    if not place.exists() or is_adapted(place) or is_artifact(place):
        return False
    # What a directory of `adapt` that lost a file still has.
    return not any((place / name).exists() for name in (CLAIM, PLAN, "index/passages"))


def cache_of(path: str) -> Path:
    """The directory in the user's cache for the documents at a path."""
    place = os.path.realpath(Path(path).expanduser())
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(place).name)[:40].strip("-._") or "documents"
    return cache_folder("documents") / f"{name}-{digest_of(os.fsencode(place), 8).hex()}"


def is_cached(root: Path) -> bool:
    """True for a directory in the user's cache, which begins with words and gets vectors by itself."""
    return root.resolve().parent == cache_folder("documents").resolve()


def prepare(path: str, *, refresh: bool = False) -> str:
    """The directory to search, with what has changed: always if it is that of documents, else with `refresh`."""
    if not is_documents(path):
        remedy = f"Name documents, or index them there first: 'qontext adapt DOCUMENTS --out {path}'."
        existing(path, "the documents or index", remedy)
        if refresh:
            # A question does not wait until vectors of everything are computed.
            _refresh(Path(path), words=True)
        return path
    root = cache_of(path)
    is_new = not is_adapted(root)
    if is_new:
        root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.note(f"Indexing {path} …")
    _refresh(root, source=[path], words=True)
    if is_new:
        log.note(
            f"Searched as it is; 'qontext adapt {path} --out runs/{root.name[:-17]}' may find more, and measures it."
        )
    return str(root)


def _refresh(root: Path, **settings: Any) -> None:
    """Index what has changed, unless another process does so."""
    if is_adapted(root) and _is_written(root):
        log.warn(f"another process updates {root}: what changed since it began is not found yet")
        return
    with log.warnings_only() if is_adapted(root) else contextlib.nullcontext():
        execution.command("refresh")(root, **settings)


def _is_written(root: Path) -> bool:
    try:
        locks.refuse_if_written(root)
    except QontextError:
        return True
    return False


def compute_vectors(path: str) -> bool:
    """Start a process that computes vectors of documents in the cache that have none yet, if the encoder is on this machine;
    returns whether it was started. It outlives this one."""
    root = cache_of(path)
    if read_adapted(root)["system"] != "bm25" or not Path(default_encoder()).is_dir() or _is_written(root):
        return False
    with (root / LOG).open("wb") as said:
        subprocess.Popen(
            [sys.executable, "-P", "-m", "qontext", "refresh", str(root), "--quiet"],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            env={**os.environ, **trust.environment()},
        )
    log.note("Vectors are being computed: the next search finds by meaning, too.")
    return True
