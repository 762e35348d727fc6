"""Files as bytes, as lines of text, and as JSON Lines: of any compression, which their first bytes tell, and any encoding.

A small file may decompress to a huge one, so of a line that is too long no more than the limit is kept, and empty lines are
skipped a block at a time.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from qontext.frame.errors import QontextError

LONGEST = 64 << 20
"""Maximum bytes of a line."""
_BLOCK = 1 << 18
SUFFIXES = (".gz", ".zst", ".xz")
"""Of compressed files."""

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz"}

LineProblem = Literal["too long", "wrong encoding", "damaged file"]


class LineError(QontextError):
    """A line that cannot be read, or a file that cannot be read from this line on."""

    def __init__(self, kind: LineProblem, message: str, place: str) -> None:
        super().__init__(message, place=place)
        self.kind: LineProblem = kind


def compression(head: bytes) -> str | None:
    """The format of a compressed file that starts with these bytes (six are enough): gzip, zstd or xz."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def plain_name(path: str | Path) -> str:
    """A file's name without the suffix of a compression."""
    name = Path(path).name
    return name[: name.rindex(".")] if name.lower().endswith(SUFFIXES) else name


def ending(path: Path) -> str:
    """The file extension, such as ``.jsonl``, in lower case and without that of a compression."""
    return Path(plain_name(path).lower()).suffix


def check_encoding(encoding: str) -> None:
    """Refuse an unknown encoding before anything is read."""
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise QontextError(
            f"unknown text encoding {encoding!r}", remedy="Try utf-8, latin-1 or utf-16."
        ) from None


def open_bytes(path: Path) -> Any:
    """The content of a file, decompressed if it is compressed."""
    return _opened(path)[1]


def _opened(path: Path) -> tuple[Any, Any]:
    """A file, and its content."""
    import pyarrow as pa

    file = pa.OSFile(os.fsencode(path), "rb")
    kind = compression(file.read(6))
    file.seek(0)
    if kind == "xz":
        return file, lzma.LZMAFile(file)
    return file, io.BufferedReader(pa.CompressedInputStream(file, kind) if kind else file, _BLOCK)


def read_blocks(path: Path, advance: Callable[[int], None] | None = None) -> Iterator[bytes]:
    """The file's content, decompressed, in blocks. `advance` is called with the number of bytes that were read of the file.
    Damaged or truncated data raises OSError when it is reached."""
    file, stream = _opened(path)
    behind = 0
    with file:
        try:
            while block := stream.read(_BLOCK):
                if advance is not None:
                    advance(file.tell() - behind)
                    behind = file.tell()
                yield block
        except (EOFError, lzma.LZMAError) as error:
            raise OSError(str(error)) from None


def each_line(
    path: Path, encoding: str = "utf-8", advance: Callable[[int], None] | None = None
) -> Iterator[tuple[int, str | LineError]]:
    """(number, line without its end) of the lines that are not empty, or what is wrong with that line. A byte-order mark is
    removed."""
    blocks: Iterable[bytes] = read_blocks(path, advance)
    if len("\n".encode(encoding)) > 1:  # UTF-16 and UTF-32 are split after decoding
        blocks, encoding = codecs.iterencode(codecs.iterdecode(blocks, encoding), "utf-8"), "utf-8"
    number = 0
    try:
        for number, line in _lines(blocks):
            if line is None:
                message = f"the line is longer than {LONGEST >> 20} MiB"
                yield number, LineError("too long", message, f"{path}:{number}")
                continue
            try:
                text = line.decode(encoding)
            except UnicodeDecodeError as error:
                yield number, wrong_encoding(error, f"{path}:{number}")
                continue
            yield number, text.removesuffix("\r").removeprefix("\ufeff" if number == 1 else "")
    except UnicodeDecodeError as error:
        yield number + 1, wrong_encoding(error, f"{path}:{number + 1}")
    except OSError as error:
        message = f"cannot be read from here on: {error}"
        yield number + 1, LineError("damaged file", message, f"{path}:{number + 1}")


def wrong_encoding(error: UnicodeDecodeError, place: str) -> LineError:
    like = (
        " (it starts like UTF-16)" if error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else ""
    )
    message = f"is not {error.encoding} text: byte 0x{error.object[error.start]:02x} at {error.start}{like}"
    return LineError("wrong encoding", message, place)


def _lines(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """The lines that are not empty, by number, without their ends; None for one that is too long."""
    begun: list[bytes] = []
    size, number = 0, 1
    for block in blocks:
        if not size and not block.strip(b"\r\n"):
            number += block.count(b"\n")
            continue
        head, *others = block.split(b"\n")
        begun.append(head)
        size += len(head)
        if size > LONGEST:
            begun.clear()
        if others:
            first = b"".join(begun) if size <= LONGEST else None
            for at, line in enumerate([first, *others[:-1]], number):
                if line not in (b"", b"\r"):
                    yield at, line
            number += len(others)
            begun, size = [others[-1]], len(others[-1])
    if size:
        yield number, b"".join(begun) if size <= LONGEST else None


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """(place, line) of the lines of a UTF-8 file that are not blank: its place is ``docs.jsonl:17``."""
    for number, line in each_line(path):
        if isinstance(line, LineError):
            raise line
        if not line.isspace():
            yield f"{path}:{number}", line


def first_line(path: Path) -> str:
    """The first line that is not blank; empty if there is none."""
    return next((line for _, line in read_lines(path)), "")


def read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of each line of a JSON lines file; empty lines are skipped."""
    for place, line in read_lines(path):
        row = read_json(line, place)
        if not isinstance(row, dict):
            raise QontextError(f"contains {type(row).__name__}, expected an object", place=place)
        yield place, row


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


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one object per line; compressed if the name ends with .gz."""
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(path.open("wb"))
        if path.suffix == ".gz":
            # Without a time stamp or a name inside, the same rows produce the same bytes.
            file = stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
        file.writelines((json.dumps(row, ensure_ascii=False) + "\n").encode() for row in rows)
