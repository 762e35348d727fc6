"""Text files by lines, plain or compressed, and JSON Lines: one object per line."""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qontext.data.compression import open_bytes
from qontext.frame.errors import QontextError


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or compressed, without line ends."""
    number = 0
    try:
        with open_bytes(path) as raw:
            for number, line in enumerate(raw, start=1):
                yield line.decode("utf-8").rstrip("\r\n").removeprefix("\ufeff" if number == 1 else "")
    except UnicodeDecodeError as error:
        raise QontextError(f"is not UTF-8 text: {error.reason}", place=f"{path}:{number}") from None
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise QontextError(
            f"the compressed file is damaged or truncated after line {number}: {error}",
            place=path,
            remedy="Download or create it again.",
        ) from None


def read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of each line of a JSON lines file; empty lines are skipped."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        row = read_json(line, f"{path}:{number}")
        if not isinstance(row, dict):
            raise QontextError(f"contains {type(row).__name__}, expected an object", place=f"{path}:{number}")
        yield f"{path}:{number}", row


def read_json(text: str, place: str) -> Any:
    """Parse JSON text whose strings can all be encoded as UTF-8."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise QontextError("is not usable JSON: nested too deeply", place=place) from None
    except ValueError as error:
        raise QontextError(f"is not JSON: {error}", place=place) from None
    if "\\u" in text:
        check_characters(value, place)
    return value


def check_characters(value: Any, place: str) -> None:
    """Refuse lone surrogates in a JSON value: JSON can escape them, but they cannot be encoded as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"U+{ord(error.object[error.start]):04X}"
        raise QontextError(f"contains a lone surrogate ({half})", place=place) from None
    except RecursionError:
        raise QontextError("is not usable JSON: nested too deeply", place=place) from None


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one object per line; compressed if the name ends with .gz."""
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(path.open("wb"))
        if path.suffix == ".gz":
            # Without a time stamp or a name inside, the same rows produce the same bytes.
            file = stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
        file.writelines((json.dumps(row, ensure_ascii=False) + "\n").encode() for row in rows)
