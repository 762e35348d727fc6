"""Makes a Python on Linux behave like one on Windows, as far as the package can see. It is on PYTHONPATH, so child processes
do, too.

For modules of the package, what POSIX alone has is missing, and `msvcrt` is there. For everyone, a file that is open or
mapped cannot be removed, replaced or renamed, nor can a folder that contains one; folders cannot be opened, and files that
are open for reading cannot be flushed. Workers are spawned, and text without an encoding is an error.
"""

# Not pathlib, which calls what is replaced here.
# ruff: noqa: PTH112, PTH115, PTH123, PTH208

from __future__ import annotations

import builtins
import fcntl
import multiprocessing
import multiprocessing.context
import os
import shutil
import struct
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "syslog", "readline"}
NAMES = {
    "os": "O_DIRECTORY chown fchmod fchown fork forkpty getegid geteuid getgid getloadavg getpgid getuid killpg mkfifo nice "
    "pread pwrite register_at_fork sched_getaffinity sched_setaffinity setsid statvfs sysconf sysconf_names uname",
    "signal": "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGUSR1 SIGUSR2 alarm pthread_sigmask setitimer sigwait",
    "socket": "AF_UNIX",
    "time": "tzset",
}


def _locking(handle: int, mode: int, count: int) -> None:
    """A lock of an open file, on bytes from its position on: like Windows', and unlike `lockf`, also within a process."""
    kind = fcntl.F_UNLCK if mode == MSVCRT.LK_UNLCK else fcntl.F_WRLCK
    start = os.lseek(handle, 0, os.SEEK_CUR)
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, count, 0))


MSVCRT: Any = types.ModuleType("msvcrt")
MSVCRT.LK_UNLCK, MSVCRT.LK_LOCK, MSVCRT.LK_NBLCK, MSVCRT.locking = 0, 1, 2, _locking


class _Without(types.ModuleType):
    """A module without some of its names."""

    def __init__(self, module: types.ModuleType, hidden: set[str]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(_module=module, _hidden=hidden)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__["_hidden"]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self.__dict__["_module"], name)


_import, _hidden = builtins.__import__, {}


def _import_on_windows(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> Any:
    importer = str((globals or {}).get("__name__", ""))
    if level == 0 and (importer + ".").startswith("qontext."):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name == "msvcrt":
            return MSVCRT
        if name in NAMES:
            if name not in _hidden:
                _hidden[name] = _Without(_import(name), {*NAMES[name].split()})
            return _hidden[name]
    return _import(name, globals, locals, fromlist, level)


def _is_open(path: Any, *, below: bool) -> bool:
    """Whether this process has the file, or one below the folder, open or mapped."""
    real = os.path.realpath(os.fsdecode(path))
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        files = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/" in line}
    for handle in os.listdir("/proc/self/fd"):
        try:
            files.add(os.readlink(f"/proc/self/fd/{handle}"))
        except OSError:
            continue
    return real in files or (below and any(file.startswith(real + os.sep) for file in files))


def _refuse_open(change: Callable[..., Any], *, below: bool) -> Callable[..., Any]:
    def changed(*paths: Any, **settings: Any) -> Any:
        for path in paths:
            if isinstance(path, str | bytes | os.PathLike) and _is_open(path, below=below):
                raise PermissionError(13, "The process cannot access the file, which is in use", path)
        return change(*paths, **settings)

    return changed


_open, _fsync = os.open, os.fsync


def _open_file(path: Any, flags: int, *more: Any, **settings: Any) -> int:
    if os.path.isdir(path) and not flags & os.O_DIRECTORY:
        raise PermissionError(13, "Permission denied", path)
    return _open(path, flags, *more, **settings)


def _flush(handle: Any) -> None:
    number = handle if isinstance(handle, int) else handle.fileno()
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(9, "Bad file descriptor")
    _fsync(number)


builtins.__import__ = _import_on_windows
os.open, os.fsync = _open_file, _flush
for name in ("unlink", "remove"):
    setattr(os, name, _refuse_open(getattr(os, name), below=False))
for name in ("rename", "replace"):
    setattr(os, name, _refuse_open(getattr(os, name), below=True))
shutil._use_fd_functions = False  # type: ignore[attr-defined]
multiprocessing.get_all_start_methods = lambda: ["spawn"]
multiprocessing.context.DefaultContext.get_all_start_methods = lambda self: ["spawn"]  # type: ignore[method-assign]
multiprocessing.set_start_method("spawn")
if sys.flags.warn_default_encoding:
    warnings.filterwarnings("error", category=EncodingWarning, module="qontext")
