"""Locks for one writer at a time, which the OS releases when the holder dies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from qontext.frame.errors import QontextError
from qontext.frame.files import make_directory, raise_disk_error


@contextlib.contextmanager
def lock(path: Path, name: str = "", *, wait: bool = False) -> Iterator[None]:
    """Lock the directory, which is created if absent, for one writer of that name; a second one is refused at once, or waits
    with `wait`. Forked children do not keep the lock, and its file is neither followed, if it is a link, nor truncated."""
    from filelock import FileLock, Timeout

    make_directory(path)
    held = FileLock(path / f".lock{name}", timeout=-1 if wait else 0, fallback_to_soft=False)
    try:
        held.acquire()
    except Timeout:
        raise QontextError(
            "another process is writing this directory",
            place=path,
            remedy="Wait for it, or choose another --out.",
        ) from None
    except OSError as error:
        raise_disk_error(error, path, anyway=True)
    try:
        yield
    finally:
        held.release()


def refuse_if_written(path: Path) -> None:
    """Raise an error if any process holds a writer's lock in the directory."""
    for file in sorted(path.glob(".lock-*")):
        if file.name not in (".lock-claim", ".lock-finish"):
            with lock(path, file.name.removeprefix(".lock")):
                pass
