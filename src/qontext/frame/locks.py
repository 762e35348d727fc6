"""Locks for one writer at a time, which name their holder and which the OS releases when the holder dies.

On Linux and macOS these are `flock` locks; on Windows, a locked byte beyond the end of the file. There, a folder that is
read holds an open file, since Windows renames no folder in which a file is open.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from qontext.frame.errors import QontextError
from qontext.frame.files import raise_disk_error
from qontext.frame.process import PAUSE

# Not filelock: before version 4 a forked child keeps the lock, and no version names the holder.
try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

REMOVABLE = "fcntl" in globals()
"""True if open files, such as a lock that is held, can be removed and their folders renamed: not on Windows."""
_BYTE = 1 << 30
"""The byte that is locked on Windows, where nobody can read a locked one."""


@contextlib.contextmanager
def lock(path: Path, name: str = "", *, wait: bool = False) -> Iterator[None]:
    """Lock the directory for one writer of that name; a second one is refused at once, or waits with `wait`.
    The OS releases the lock when the process is killed; forked children do not keep it.
    """
    handle = _locked(path, path / f".lock{name}", wait=wait)
    with handle:
        _sign(handle)
        _held.append(handle)
        try:
            yield
        finally:
            _held.remove(handle)


def _locked(folder: Path, file: Path, *, wait: bool) -> IO[str]:
    """The locked file, opened again if it was removed with its folder before it was locked."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # It is truncated, and a link in a directory from someone else may point anywhere.
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            handle = os.fdopen(os.open(file, flags, 0o666), "a+", encoding="ascii")
        except OSError as error:
            raise_disk_error(error, folder, anyway=True)
        try:
            _take(handle.fileno(), wait=wait)
        except OSError as error:
            with handle:
                raise _refusal(error, handle, folder) from None
        except BaseException:
            handle.close()
            raise
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), file.stat()):
                return handle
        handle.close()


def _refusal(error: OSError, handle: IO[str], folder: Path) -> QontextError:
    """The error for a folder that another process has locked, or whose file system has no locks."""
    # Where the server of a network file system compares locks, its refusal may be that of permissions.
    if REMOVABLE and not isinstance(error, BlockingIOError | PermissionError):
        return QontextError(
            f"the file system cannot lock files: {(error.strerror or str(error)).lower()}",
            place=folder,
            remedy="Choose an --out on another one, or mount it with locks (Lustre: the option flock).",
        )
    return QontextError(
        f"another process is writing this directory{_holder(handle)}",
        place=folder,
        remedy="Wait for it, or choose another --out.",
    )


def _take(handle: int, *, wait: bool) -> None:
    """Lock an open file, or raise OSError if another process has it locked."""
    if REMOVABLE:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    while True:
        os.lseek(handle, _BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
            return
        except OSError:
            if not wait:
                raise
        time.sleep(PAUSE)


class ReadLock:
    """A folder that is read, and that `remove_unread` leaves alone until this object is gone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not REMOVABLE:
            self._handle = os.open(path / f".lock-reading-{os.getpid()}", os.O_RDWR | os.O_CREAT)
            return
        self._handle = os.open(path, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._handle, fcntl.LOCK_SH)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)
            if not REMOVABLE:
                with contextlib.suppress(OSError):  # another reader's
                    (self.path / f".lock-reading-{os.getpid()}").unlink()


def is_read(path: Path) -> bool:
    """True if a process has a `ReadLock` of the folder."""
    if not REMOVABLE:
        return any(path.glob(".lock-reading-*"))
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)  # otherwise it is a file system without locks
    finally:
        os.close(handle)
    return False


def remove_unread(path: Path, aside: Path) -> bool:
    """Remove a folder, unless a process reads it. It is first renamed to `aside`, so it is whole or gone."""
    if not REMOVABLE:
        try:
            path.rename(aside)
        except PermissionError:
            return False
        shutil.rmtree(aside)
        return True
    if path.is_symlink():
        path.unlink()
        return True
    if is_read(path):
        return False
    path.rename(aside)
    shutil.rmtree(aside)
    return True


def _sign(handle: IO[str]) -> None:
    """Write the holder into the lock file, unless the disk is full."""
    with contextlib.suppress(OSError):
        os.ftruncate(handle.fileno(), 0)
        os.write(handle.fileno(), f"{os.getpid()} on {platform.node()}".encode())


def _holder(handle: IO[str]) -> str:
    os.lseek(handle.fileno(), 0, os.SEEK_SET)
    holder = re.fullmatch(r"\d+ on [\w.-]*", os.read(handle.fileno(), 300).decode("utf-8", "replace"))
    return f" (process {holder[0]})" if holder else ""


def _let_go() -> None:
    """In a forked child: close the lock file, since a lock lasts as long as any process has it open."""
    for handle in _held:
        handle.close()
    _held.clear()


_held: list[IO[str]] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def refuse_if_written(path: Path) -> None:
    """Raise an error if any process holds a writer's lock in the directory."""
    for file in sorted(path.glob(".lock-*")):
        if file.name not in (".lock-claim", ".lock-finish"):
            with lock(path, file.name.removeprefix(".lock")):
                pass
