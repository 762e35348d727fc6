"""What the disk is asked, and what it says, in words."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from pathlib import Path
from typing import NoReturn

from qontext.errors import QontextError


def file_hash(path: Path) -> str:
    """The hash of a file's content."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise QontextError(f"cannot be read: {error.strerror}", place=path) from None


def sync(path: Path) -> None:
    """Flush a file or a directory entry to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def raise_disk_error(error: BaseException, path: Path, *, anyway: bool = False) -> NoReturn:
    """Turn what the disk said into a sentence; what it did not say is raised as it is, unless `anyway`."""
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
    """The system's number of an error. Libraries in Rust (safetensors) say it in their text alone; numpy merely
    says that not everything was written."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if isinstance(error, OSError) and re.search(r"\d+ requested and \d+ written", str(error)):
        return errno.ENOSPC
    said = re.search(r"\(os error (\d+)\)", str(error))
    return int(said[1]) if said and not isinstance(error, QontextError) else None
