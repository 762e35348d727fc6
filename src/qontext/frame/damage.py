"""Files that Qontext wrote, read back. One that cannot be read is reported as damaged, with how to make it again."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qontext.frame.disk import file_stamp, require_regular
from qontext.frame.errors import QontextError, first_line, raise_if_out_of_memory

if TYPE_CHECKING:
    import numpy as np

META, CLAIM = "meta.json", "claim.json"
"""The description of a finished directory, and of one that is being written."""


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
