"""Files → lines of text, of any compression and encoding, with a limit on line length. Compression is
detected by a file's first bytes, not by its name.
"""

from __future__ import annotations

import codecs
import io
import lzma
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from qontext.corpus.sources.base import Problem
from qontext.data.lines import compression, plain_name
from qontext.frame.errors import QontextError

LONGEST = 64 << 20
"""Maximum bytes of a line, or of a plain text file, to be a record."""

_BLOCK = 1 << 18


def read_lines(
    path: Path, encoding: str, advance: Callable[[int], None]
) -> Iterator[tuple[int, str | Problem]]:
    """(line number, line without its end), or a problem with that line. A byte-order mark is removed, and
    empty lines after the first may be skipped."""
    blocks = read_blocks(path, advance)
    if not _keeps_line_ends(encoding):
        blocks, encoding = _to_utf8(blocks, encoding), "utf-8"
    number = 0
    try:
        for number, line in _lines(blocks):
            if line is None:
                megabytes = LONGEST >> 20
                yield (
                    number,
                    Problem(f"{path}:{number}", "too long", f"the line is longer than {megabytes} MiB"),
                )
                continue
            try:
                text = line.decode(encoding)
            except UnicodeDecodeError as error:
                yield number, wrong_encoding(error, f"{path}:{number}")
                continue
            if number == 1:
                text = text.removeprefix("\ufeff")
            yield number, text[:-1] if text.endswith("\r") else text
    except UnicodeDecodeError as error:
        yield number + 1, wrong_encoding(error, f"{path}:{number + 1}")
    except OSError as error:
        message = f"cannot be read from here on: {error}"
        yield number + 1, Problem(f"{path}:{number + 1}", "damaged file", message)


def read_blocks(path: Path, advance: Callable[[int], None]) -> Iterator[bytes]:
    """The file's content, decompressed. Damaged or truncated data raises OSError when it is reached."""
    with pa.OSFile(os.fsencode(path), "rb") as file:
        stream = _stream(file, compression(file.read(6)))
        behind = 0
        try:
            while block := stream.read(_BLOCK):
                position = file.tell()
                advance(position - behind)
                behind = position
                yield block
        except (EOFError, lzma.LZMAError) as error:
            raise OSError(str(error)) from None


def _stream(file: pa.OSFile, kind: str | None) -> Any:
    file.seek(0)
    if kind == "xz":
        return io.BufferedReader(lzma.LZMAFile(file))
    return pa.CompressedInputStream(file, kind) if kind else file


def ending(path: Path) -> str:
    """The file extension, such as ``.jsonl``, in lower case and without that of a compression."""
    return Path(plain_name(path).lower()).suffix


def check_encoding(encoding: str) -> None:
    """Refuse an unknown encoding before anything is read."""
    try:
        b"a".decode(encoding)
    except UnicodeDecodeError:
        pass
    except LookupError:
        raise QontextError(
            f"unknown text encoding {encoding!r}", remedy="Try utf-8, latin-1 or utf-16."
        ) from None


def wrong_encoding(error: UnicodeDecodeError, place: str) -> Problem:
    like = (
        " (it starts like UTF-16)" if error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else ""
    )
    message = f"is not {error.encoding} text: byte 0x{error.object[error.start]:02x} at {error.start}{like}"
    return Problem(place, "wrong encoding", message)


def _keeps_line_ends(encoding: str) -> bool:
    """True if lines can be split before decoding, as in all encodings except UTF-16 and UTF-32."""
    try:
        return b"\n\t".decode(encoding) == "\n\t"
    except UnicodeDecodeError:
        return False


def _to_utf8(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    for block in blocks:
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", True).encode()


def _lines(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines without their ends; None for a line that is too long, of which at most the limit is kept
    in memory. Empty lines are skipped where that is faster: a small file may decompress to billions.
    """
    begun: list[bytes] = []
    size, number = 0, 1
    for block in blocks:
        if number > 1 and not size and not block.strip(b"\r\n"):
            number += block.count(b"\n")
            block = block[block.rfind(b"\n") + 1 :]  # half a line end
            if not block:
                continue
        head, *others = block.split(b"\n")
        begun.append(head)
        size += len(head)
        if size > LONGEST:
            begun.clear()
        if others:
            yield number, b"".join(begun) if size <= LONGEST else None
            within = enumerate(others[:-1], number + 1)
            yield from ((at, line) for at, line in within if line and line != b"\r")
            number += len(others)
            begun, size = [others[-1]], len(others[-1])
    if size:
        yield number, b"".join(begun) if size <= LONGEST else None
