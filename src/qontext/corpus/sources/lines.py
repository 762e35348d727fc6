"""Files → lines of text, whatever their compression and encoding, however long a line may be.

Compression is told by a file's first bytes, not by its name.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from qontext.corpus.sources.base import Problem
from qontext.errors import QontextError

LONGEST = 64 << 20
"""Bytes of the longest line, or file of plain text, that is still taken for a record."""

_BLOCK = 1 << 18
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


def read_lines(
    path: Path, encoding: str, advance: Callable[[int], None]
) -> Iterator[tuple[int, str | Problem]]:
    """(line number, line without its end), or what is wrong with that line. A byte-order mark is left out."""
    blocks = read_blocks(path, advance)
    if not _keeps_line_ends(encoding):
        blocks, encoding = _to_utf8(blocks, encoding), "utf-8"
    number = 0
    try:
        for line in _lines(blocks):
            number += 1
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
    """The file's content, decompressed. What is broken or cut off raises OSError at the place where it is."""
    with pa.OSFile(str(path), "rb") as file:
        head = file.read(4)
        file.seek(0)
        kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
        stream = pa.CompressedInputStream(file, kind) if kind else file
        behind = 0
        while block := stream.read(_BLOCK):
            position = file.tell()
            advance(position - behind)
            behind = position
            yield block


def ending(path: Path) -> str:
    """What the name ends in, such as ``.jsonl``, in small letters and without the ending of a compression."""
    return Path(path.name.lower().removesuffix(".gz").removesuffix(".zst")).suffix


def check_encoding(encoding: str) -> None:
    """Refuse the name of an encoding that there is not, before anything is read."""
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
    """Whether lines can be told apart before decoding, as in all encodings but UTF-16 and UTF-32."""
    try:
        return b"\n\t".decode(encoding) == "\n\t"
    except UnicodeDecodeError:
        return False


def _to_utf8(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    for block in blocks:
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", True).encode()


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes | None]:
    """Lines without their ends; None for a line that is too long, of which no more than the limit is held."""
    begun: list[bytes] = []
    size = 0
    for block in blocks:
        head, *others = block.split(b"\n")
        begun.append(head)
        size += len(head)
        if size > LONGEST:
            begun.clear()
        if others:
            yield b"".join(begun) if size <= LONGEST else None
            yield from others[:-1]
            begun, size = [others[-1]], len(others[-1])
    if size:
        yield b"".join(begun) if size <= LONGEST else None
