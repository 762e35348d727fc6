"""Files and folders: reading, flushing and walking them, and disk errors as readable messages."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from qontext.frame.errors import QontextError, raise_if_out_of_memory

StrPath = str | os.PathLike[str]


def file_hash(path: Path) -> str:
    """The hash of a file's content."""
    try:
        with require_regular(path).open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise QontextError(f"cannot be read: {error.strerror}", place=path) from None


def file_stamp(path: Path) -> str:
    """The file's inode, size and times, which change with its content."""
    now = path.stat()
    return f"{now.st_ino} {now.st_size} {now.st_mtime_ns} {now.st_ctime_ns}"


def require_regular(path: Path) -> Path:
    """The path, if it is a regular file. Reading a pipe would block; a device may never end."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise QontextError("the file is missing", place=path) from None
    except OSError as error:
        raise QontextError(f"cannot be read: {_reason(error)}", place=path) from None
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
        raise QontextError(
            f"is a {kinds.get(stat.S_IFMT(mode), 'device')}, not a regular file",
            place=path,
            remedy="Write its content to a file, and name that file."
            if stat.S_ISFIFO(mode)
            else "Name a regular file.",
        )
    return path


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Convert OS errors about files, such as a missing permission, into sentences with the file's name; and a lack of
    memory into one. Wraps a whole verb: neither is a bug of the program.
    """
    try:
        yield
    except (MemoryError, RuntimeError, ImportError) as error:  # a library that cannot be mapped
        raise_if_out_of_memory(error)
        raise
    except OSError as error:
        raise_if_out_of_memory(error)
        if error.errno not in _REFUSALS:
            raise
        names = [
            os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)
        ]
        quoted = re.search(r"'([^']*)'", str(error))  # pyarrow names the file only in its message
        place = names[0] if names else quoted[1] if quoted else None
        raise QontextError(f"cannot be read or written: {_reason(error)}", place=place) from error


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)


_REFUSALS = {
    getattr(errno, name)
    for name in (
        "EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "EIO", "EFBIG", "ELOOP", "ENAMETOOLONG",
        "ENOENT", "ENOTDIR", "EISDIR", "ENOTEMPTY", "EMFILE", "ENFILE", "ETXTBSY", "EBUSY", "ENODEV", "ENXIO",
        "ESTALE",
    )
}  # fmt: skip


def sync(path: Path) -> None:
    """Flush a file or a directory entry to the disk. Windows flushes files that may be written, and no directories."""
    is_posix = hasattr(os, "O_DIRECTORY")
    if not is_posix and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if is_posix else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


REPLACE_SECONDS = 5.0
"""Seconds in which others close a file that is to be replaced."""


def replace(source: Path, target: Path) -> None:
    """Rename a file or a folder atomically. On Windows, a file that another process is reading, if only to look for viruses,
    cannot be replaced: this waits for it.
    """
    end = time.monotonic() + REPLACE_SECONDS
    while True:
        try:
            source.replace(target)
            return
        except PermissionError:
            if hasattr(os, "O_DIRECTORY") or time.monotonic() > end:
                raise
        time.sleep(0.01)


def make_directory(path: Path) -> None:
    """Create the directory and its parents, unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise_disk_error(error, path, anyway=True)


def make_own_directory(path: Path) -> None:
    """Create a directory below the one that the user named. A link, which may come from someone else, is refused: what it
    points to is nobody's output."""
    if path.is_symlink():
        raise QontextError("is a link, and nothing is written through it", place=path, remedy="Remove it.")
    make_directory(path)


def is_own_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def require_no_file(path: Path) -> None:
    """Refuse a path at which no directory can be created, because it or one of its parents is a file."""
    for above in (path, *path.parents):
        if above.exists():
            if not above.is_dir():
                raise QontextError("a file is in the way of this directory", place=path)
            return


def raise_disk_error(error: BaseException, path: Path, *, anyway: bool = False) -> NoReturn:
    """Convert a disk error into a sentence; other errors are re-raised as they are, unless `anyway`."""
    number = _disk_error(error)
    if number in (errno.ENOSPC, errno.EDQUOT):
        raise QontextError(
            "the disk is full",
            place=path,
            remedy="Free some space and run the same command again: it resumes, nothing finished is lost.",
        ) from error
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        raise QontextError("cannot write here: permission denied", place=path) from error
    if number in (errno.ENOTDIR, errno.EEXIST):
        raise QontextError("a file is in the way of this directory", place=path) from error
    if number is not None and (anyway or number in (errno.EIO, errno.EFBIG, errno.EISDIR)):
        raise QontextError(f"cannot write here: {os.strerror(number).lower()}", place=path) from error
    raise error


def _disk_error(error: BaseException) -> int | None:
    """The errno of an error. Libraries in Rust (safetensors) and C++ (faiss) put it, or its text, into their
    message; numpy only reports that not everything was written."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if isinstance(error, QontextError) or not isinstance(error, Exception):
        return None
    text = str(error)
    if isinstance(error, OSError) and re.search(r"\d+ requested and \d+ written", text):
        return errno.ENOSPC
    if match := re.search(r"\(os error (\d+)\)", text):
        return int(match[1])
    return next((number for number in _WRITING if os.strerror(number) in text), None)


_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def allow_open_files(count: int) -> None:
    """Raise the soft limit on open files so that `count` more can be open, such as memory-mapped ones."""
    wanted = count + 512
    limit = raise_open_files(wanted)
    if limit is not None and limit < wanted:
        raise QontextError(
            f"{count:,} open files are needed, but the limit of this process is {limit:,}",
            remedy="Raise the limit (ulimit -Hn).",
        )


def raise_open_files(wanted: int) -> int | None:
    """Raise the soft limit on open files to `wanted`, as far as the system allows; the limit, or None if there is none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    if soft < wanted and soft != hard:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


Identity = tuple[int, int]


def walk(
    root: Path, *, enter: Callable[[os.DirEntry[str]], bool] = lambda entry: True
) -> Iterator[os.DirEntry[str] | OSError]:
    """The files below `root` in sorted order; a folder that cannot be read yields its error instead.

    Links to folders are followed, but a folder is read once: at its own place if that is below `root`, else
    at the first link to it. `enter` selects the folders to read.
    """
    visited = set(_own(root, enter))
    yield from _below(root, enter, visited, through_link=False)


def _below(
    folder: Path, enter: Callable[[os.DirEntry[str]], bool], visited: set[Identity], through_link: bool
) -> Iterator[os.DirEntry[str] | OSError]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        yield error
        return
    for entry in entries:
        try:
            is_folder = entry.is_dir()
        except OSError as error:
            if error.errno != errno.ELOOP:
                yield error
                continue
            is_folder = False  # a loop of links
        if not is_folder:
            yield entry
        elif enter(entry):
            linked = through_link or entry.is_symlink()
            if linked:
                identity = _identity(Path(entry.path))
                if identity in visited:
                    continue
                visited.add(identity)
            yield from _below(Path(entry.path), enter, visited, linked)


def _own(root: Path, enter: Callable[[os.DirEntry[str]], bool]) -> Iterator[Identity]:
    """The root and the folders below it that are not reached through a link."""
    yield _identity(root)
    try:
        entries = list(os.scandir(root))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and enter(entry):
            yield from _own(Path(entry.path), enter)


def _identity(path: Path) -> Identity:
    status = path.stat()
    return status.st_dev, status.st_ino


def shown_size(count: int) -> str:
    """A number of bytes for people: 1,536 → 1.5 KiB."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
