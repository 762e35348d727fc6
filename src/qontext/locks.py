"""One writer at a time: locks that the system releases when their holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from qontext.disk import raise_disk_error
from qontext.errors import QontextError


@contextlib.contextmanager
def lock(path: Path, name: str = "", *, wait: bool = False) -> Iterator[None]:
    """Hold the directory for one writer of that name; a second one is told at once, or waits with `wait`.

    Released by the system on a kill: no forked child keeps it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = (path / f".lock{name}").open("a")
    except OSError as error:
        raise_disk_error(error, path, anyway=True)
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            raise QontextError(
                "another process is writing this directory",
                place=path,
                remedy="Wait for it, or choose another --out.",
            ) from None
        _held.append(handle)
        try:
            yield
        finally:
            _held.remove(handle)


def _let_go() -> None:
    """In a forked child: a lock lasts as long as any process has its file open, so this one closes it."""
    for handle in _held:
        handle.close()
    _held.clear()


_held: list[IO[str]] = []
os.register_at_fork(after_in_child=_let_go)


def refuse_if_written(path: Path) -> None:
    """An error if any process holds a writer's lock in the directory."""
    for held in sorted(path.glob(".lock-*")):
        if held.name != ".lock-claim":
            with lock(path, held.name.removeprefix(".lock")):
                pass
