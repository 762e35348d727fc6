"""Shared by all document formats: the result, the error, and bounded reading of files and archives."""

from __future__ import annotations

import codecs
import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qontext.corpus.sources.base import ProblemKind
from qontext.corpus.sources.lines import LONGEST, read_blocks, wrong_encoding
from qontext.data.lines import plain_name
from qontext.data.records import Block
from qontext.frame.errors import printable

LARGEST = 1 << 29
"""Maximum bytes of a document that is not read at once, such as a PDF file or a mailbox."""
LARGEST_MARKUP = 32 << 20
"""Maximum bytes of an HTML, Markdown or XML text: its tree takes about ten times as much memory."""
LONGEST_HEADING = 200
"""Maximum characters of a heading in the path of a block."""

HeadingOrBlock = tuple[int, Block] | Block | None
"""A heading with its level, a block without its headings, or None for content that is left out."""


class Unreadable(Exception):
    """The reason why a file cannot be read; the source adds its place."""

    def __init__(self, kind: ProblemKind, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.line = kind, message, line


@dataclass(frozen=True)
class FileText:
    """A document of a file. `name` distinguishes several documents in one file, such as the messages of a mailbox."""

    title: str
    blocks: tuple[Block, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    text: str = ""
    """The text, unchanged, if there are no blocks."""


Reader = Callable[[Path, str], Iterator[FileText]]
"""(file, encoding of text files) → its documents. Raises Unreadable."""


def read_bytes(path: Path, most: int = LONGEST) -> bytes:
    """The file's content, decompressed if necessary."""
    content = bytearray()
    try:
        for block in read_blocks(path, lambda amount: None):
            content += block
            if len(content) > most:
                raise Unreadable("too long", f"the file is longer than {most >> 20} MiB")
    except OSError as error:
        raise Unreadable("damaged file", f"cannot be read: {error}") from None
    return bytes(content)


def opened(path: Path, most: int = LARGEST) -> Path | bytes:
    """A file that is not read at once, as its path; if it is compressed, its content, of at most `LONGEST` bytes."""
    if plain_name(path) != path.name:
        return read_bytes(path)
    if path.stat().st_size > most:
        raise Unreadable("too large", f"the file is larger than {most >> 20} MiB")
    return path


def read_text(path: Path, encoding: str, most: int = LONGEST) -> str:
    """The file's text, without a byte-order mark and with normalized line ends."""
    content = read_bytes(path, most)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(10) + 1
        raise Unreadable("wrong encoding", wrong_encoding(error, "").message, line=line) from None
    if "\0" in text:
        raise Unreadable("NUL bytes", "its text contains NUL characters")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def decode(content: bytes, declared: str | None, encoding: str) -> str:
    """The text of a document that may declare its encoding; the fallback is Windows-1252. A few invalid bytes do not
    change the encoding."""
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if content.startswith(mark):
            return content.decode(name, "replace").replace("\0", "")
    for charset, errors in (
        (declared, "strict"),
        (encoding, "strict"),
        (declared, "replace"),
        (encoding, "replace"),
        ("cp1252", "strict"),
    ):
        try:
            name = codecs.lookup(charset or encoding).name
            name = _SUPERSETS.get(name, name)
            text = content.decode(name, errors)
            if errors == "strict" or _is_mostly(content, text, name):
                return text.replace("\0", "")
        except (ValueError, LookupError):  # also for invalid names
            continue
    return content.decode("latin-1").replace("\0", "")


_SUPERSETS = {"gb2312": "gbk", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "cp950"}
"""Encodings with the further characters of files that declare these."""


def _is_mostly(content: bytes, text: str, charset: str) -> bool:
    """True if, beyond ASCII, many more characters are valid in the encoding than are replaced in the text. Half are enough
    in UTF-8, where bytes of other encodings are seldom valid, and where a byte is a character."""
    if charset.startswith(("utf-16", "utf-32")):  # in which any bytes are characters
        return False
    valid, all_of_it = (
        len(part) - len(part.encode("ascii", "ignore")) for part in (content.decode(charset, "ignore"), text)
    )
    every = bytes(range(256))  # pairs of which are characters of encodings such as GBK
    is_strict = len(every.decode(charset, "replace")) == len(every)
    return all_of_it - valid <= (valid if is_strict else min(valid, max(1, valid / 20)))


_BROKEN = (
    zipfile.BadZipFile,
    NotImplementedError,
    EOFError,
    OSError,
    LookupError,
    ValueError,
    OverflowError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
)
"""Exceptions raised when reading a damaged archive."""


@contextmanager
def archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """The zip archive at `path`. `member` reads its files."""
    content = opened(path)
    try:
        with zipfile.ZipFile(io.BytesIO(content) if isinstance(content, bytes) else content) as files:
            yield files
    except _BROKEN as error:
        raise Unreadable("damaged document", f"is not a readable archive ({error})") from None
    except RuntimeError as error:  # how zipfile reports a password
        raise Unreadable("encrypted", f"is encrypted ({error})") from None


def member(container: zipfile.ZipFile, name: str, most: int = LARGEST_MARKUP) -> bytes:
    """Read a file of the archive. The size that its header declares is checked first and never exceeded."""
    size = container.getinfo(name).file_size
    if size > most:
        raise Unreadable("too large", f"its {name} unpacks to {size >> 20:,} MiB, more than {most >> 20}")
    return container.read(name)


def under_headings(parts: Iterable[HeadingOrBlock]) -> Iterator[Block]:
    """The blocks with the headings above them. A heading with nothing below it is a block, and so is a long one."""
    path: list[tuple[int, str]] = []
    empty: Block | None = None
    follows = False
    for part in parts:
        if isinstance(part, tuple):
            level, heading = part
            if empty is not None and level <= path[-1][0]:
                yield empty
                empty = None
            path = [above for above in path if above[0] < level]
            if heading.text:
                empty = replace(heading, headings=tuple(name for _, name in path))
                path.append((level, heading.text[:LONGEST_HEADING]))
                if len(heading.text) > LONGEST_HEADING:
                    yield empty
                    empty = None
        else:
            empty = None
            if part is not None:
                yield replace(part, headings=tuple(name for _, name in path), tight=part.tight and follows)
        follows = isinstance(part, Block) or (part is None and follows)
    if empty is not None:
        yield empty


def collapse(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())


_STEM = re.compile(r"\.\w+(\.gz|\.zst|\.xz)?$")


def stem(path: Path) -> str:
    """The file name without extension, the title of a document without one."""
    return _STEM.sub("", printable(path.name))
