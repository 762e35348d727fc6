"""Files and folders: reading, hashing, flushing and walking them; disk errors and damage as readable messages.

Of files that Qontext wrote, one that cannot be read is reported as damaged, with how to make it again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from qontext.frame.errors import QontextError, first_line, raise_if_out_of_memory

if TYPE_CHECKING:
    import numpy as np

StrPath = str | os.PathLike[str]
META, CLAIM = "meta.json", "claim.json"
"""The description of a finished directory, and of one that is being written."""
SETTLED = 2.0
"""Seconds after which times of files differ from those of a later change, in every file system."""


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


def file_hash(path: Path) -> str:
    """The hash of a file's content."""
    try:
        with require_regular(path).open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise QontextError(f"cannot be read: {error.strerror}", place=path) from None


def content_hash(path: Path) -> str:
    """The same. The file is not read again in this process while its stamp is the same, unless it is so new that a change
    may leave the stamp as it is."""
    require_regular(path)
    is_new = time.time() - path.stat().st_mtime < SETTLED
    return file_hash(path) if is_new else _content_hash(path, file_stamp(path))


@lru_cache(200_000)
def _content_hash(path: Path, stamp: str) -> str:
    return file_hash(path)


def file_stamp(path: Path) -> str:
    """The file's inode, size and times, which change with its content."""
    now = path.stat()
    return f"{now.st_ino} {now.st_size} {now.st_mtime_ns} {now.st_ctime_ns}"


def cache_folder(kind: str) -> Path:
    """The folder for data of this kind in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qontext" / kind


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
    """Flush a file or a directory entry to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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


def is_of_others(description: Path) -> bool:
    """True if a file with the name of a description is plainly another program's: an object without anything by which a
    description is known. Documents often have such files."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return _is_of_others(require_regular(description), file_stamp(description))
    return False


@lru_cache(1024)
def _is_of_others(description: Path, stamp: str) -> bool:
    """The same, kept until the file changes: a search asks it at every question."""
    value = json.loads(description.read_text(encoding="utf-8"))
    return isinstance(value, dict) and bool(value) and not value.keys() & {"verb", "key", "digest"}


def damaged(path: Path, what: str) -> QontextError:
    """The error for a file with the wrong content."""
    return QontextError(f"damaged: {what}", place=path, remedy=_remedy(path))


@contextlib.contextmanager
def opening(path: Path, what: str) -> Iterator[None]:
    """Turns whatever a parser raises inside into the error for a damaged file; `what` is what it should be.

    Parsers raise whatever they like on damaged input, so every exception counts. Use it around parsing alone.
    """
    try:
        yield
    except QontextError:
        raise
    except FileNotFoundError as error:
        missing = path if error.filename is None else Path(error.filename)
        raise damaged(missing, "the file is missing") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
            raise QontextError("cannot be read: permission denied", place=path) from None
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            raise QontextError(
                "too many open files", place=path, remedy="Raise the limit: ulimit -n."
            ) from None
        raise_if_out_of_memory(error)
        raise damaged(path, f"not {what} ({first_line(error)})") from None


def read_array(
    path: Path, kinds: str, *, shape: tuple[int | None, ...] | None = (None,), mapped: bool = True
) -> np.ndarray[Any, Any]:
    """The array of an `.npy` file. `kinds` are numpy's letters of what it may hold; None in `shape` is any length,
    and None for it any shape."""
    import numpy as np

    require_regular(path)
    with opening(path, "a readable array: it is cut off or no .npy file"):
        array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("several arrays in one file")
    if array.dtype.kind not in kinds or array.dtype.hasobject:
        raise damaged(
            path, f"its type is {array.dtype}, expected {' or '.join(_KINDS[kind] for kind in kinds)}"
        )
    if shape is not None and (
        array.ndim != len(shape) or any(n is not None and n != m for n, m in zip(shape, array.shape))
    ):
        expected = " × ".join("any" if n is None else str(n) for n in shape)
        raise damaged(path, f"its shape is {array.shape}, expected {expected}")
    return array


def read_json(path: Path, shape: Any) -> Any:
    """The JSON in the file, once it has the `shape`: a type, such as a TypedDict or a dataclass."""
    require_regular(path)
    with opening(path, "JSON"):
        value = json.loads(path.read_text(encoding="utf-8"))
    if complaint := misfit(value, shape):
        raise damaged(path, complaint)
    return value


def misfit(value: Any, shape: Any) -> str | None:
    """The difference of the value from the shape, or None."""
    from pydantic import ValidationError

    try:
        # As JSON, where a list is a tuple, too.
        _adapter(shape).validate_json(
            json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"), strict=True
        )
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        message = first["msg"][:1].lower() + first["msg"][1:]
        return f"{name}: {message}" if name else message
    return None


@cache
def _adapter(shape: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(shape)


def _remedy(path: Path) -> str:
    """The command that makes the file again, as far as the description of the directory around it tells."""
    for folder in (path, *path.parents):
        if (folder / CLAIM).is_file():
            return "Remove it, and run the same command again: it resumes."
        if (folder / META).is_file():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                verb = json.loads((folder / META).read_text(encoding="utf-8"))["verb"]
                return f"Remove the directory {folder}, and run 'qontext {verb}' (or its recipe) again."
            break
    return "Fetch or write it again."


_KINDS = {"b": "booleans", "i": "integers", "u": "unsigned integers", "f": "floating point"}
