"""Files as bytes, as lines of text, and as JSON Lines, decompressed according to their first bytes.

A small file may decompress to a huge one, so implausible content is refused before it fills the memory or takes hours.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qontext.frame.errors import QontextError

LONGEST_LINE = 256 << 20
MOST_BLANKS = 1 << 20
"""Consecutive line ends."""

_BLOCK = 1 << 18
SUFFIXES = (".gz", ".zst", ".xz")
"""Of compressed files."""

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz"}


def compression(head: bytes) -> str | None:
    """The format of a compressed file that starts with these bytes (six are enough): gzip, zstd or xz."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def plain_name(path: str | Path) -> str:
    """A file's name without the suffix of a compression."""
    name = Path(path).name
    return name[: name.rindex(".")] if name.lower().endswith(SUFFIXES) else name


def open_bytes(path: Path) -> io.BufferedReader:
    """The content of a file, decompressed if it is compressed."""
    file = path.open("rb")
    return io.BufferedReader(_Checked(file, _decompressed(file), path), _BLOCK)


def _decompressed(file: io.BufferedReader) -> Any:
    kind = compression(file.peek(6))
    if kind == "gzip":
        return gzip.open(file, "rb")
    if kind == "xz":
        return lzma.open(file, "rb")
    if kind == "zstd":
        import pyarrow as pa

        # zstandard's own reader takes half a frame for a whole one
        return pa.CompressedInputStream(file, "zstd")
    return file


class _Checked(io.RawIOBase):
    """A stream that checks that its lines are plausible. It works on whole blocks, at no cost per line."""

    def __init__(self, file: io.BufferedReader, inner: Any, path: Path) -> None:
        self.file, self.inner, self.path, self.unbroken, self.blanks = file, inner, path, 0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            block = self.inner.read(len(buffer))
        except OSError as error:
            if error.errno is None:  # a decompressor's
                raise EOFError(str(error)) from None
            raise
        buffer[: len(block)] = block
        last = block.rfind(b"\n")
        self.unbroken = len(block) - last - 1 if last >= 0 else self.unbroken + len(block)
        self.blanks = 0 if block.strip(b"\r\n") else self.blanks + len(block)
        if self.unbroken > LONGEST_LINE:
            raise QontextError(
                f"contains a line of more than {LONGEST_LINE >> 20} MiB",
                place=self.path,
                remedy="Check that it is a text file with one record per line.",
            )
        if self.blanks > MOST_BLANKS:
            raise QontextError(
                f"contains more than {MOST_BLANKS:,} empty lines in a row",
                place=self.path,
                remedy="Check how the file was created.",
            )
        return len(block)

    def close(self) -> None:
        self.inner.close()
        self.file.close()
        super().close()


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
