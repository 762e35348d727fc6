"""Document formats: a table of endings and readers, and what the readers share. A reader yields the documents of a file
as blocks of text, each with its headings and place.
"""

from __future__ import annotations

import codecs
import importlib
import lzma
import mimetypes
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from qontext.corpus.sources.base import ProblemKind
from qontext.data.lines import ending, open_bytes, plain_name, wrong_encoding
from qontext.data.records import Block
from qontext.frame.errors import QontextError, printable

LARGEST = 1 << 29
"""Maximum bytes of a document that is not text, such as a PDF file."""
LARGEST_TEXT = 32 << 20
"""Maximum bytes of a text: the tree of a page takes about ten times as much memory."""
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


Reader = Callable[[Path, str], Iterator[FileText]]
"""(file, encoding of text files) → its documents. Raises Unreadable."""


class DocumentFormat(NamedTuple):
    """The reader of a format, as module:function, and the optional package that it needs."""

    reader: str
    endings: tuple[str, ...]
    package: str | None = None


_CODE = (
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".java", ".kt", ".scala", ".go", ".rs", ".swift",
    ".js", ".mjs", ".jsx", ".ts", ".tsx", ".rb", ".php", ".pl", ".lua", ".r", ".jl", ".sh", ".sql",
)  # fmt: skip
FORMATS = {
    "text": DocumentFormat("text:read_plain", (".txt",)),
    "csv": DocumentFormat("text:read_csv", (".csv",)),
    "markdown": DocumentFormat("markdown:read", (".md", ".markdown", ".mdx")),
    "rst": DocumentFormat("rst:read", (".rst",)),
    "html": DocumentFormat("html:read", (".html", ".htm", ".xhtml")),
    "notebook": DocumentFormat("text:read_notebook", (".ipynb",)),
    "mail": DocumentFormat("mail:read", (".eml", ".mbox")),
    "office": DocumentFormat("office:read", (".docx", ".odt", ".pptx", ".xlsx", ".rtf", ".epub"), "pypandoc"),
    "pdf": DocumentFormat("pdf:read", (".pdf",), "pypdfium2"),
    "code": DocumentFormat("text:read_code", _CODE),
}
_OF_ENDING = {suffix: name for name, kind in FORMATS.items() for suffix in kind.endings}
TEXTS = frozenset(
    "authors bugs changelog changes contributing copying copyright credits faq history install licence license news notes "
    "readme thanks todo".split()
)
"""Names of text files without an extension, or with Debian's."""
_NOT_TEXTS = frozenset({".css", ".map", ".lock", ".json", ".jsonl", ".tsv", ".parquet"})
"""Endings of text files that are not documents."""
_HEAD = 8_192
_MEDIA = mimetypes.MimeTypes(filenames=())


def shown_ending(path: Path) -> str:
    """The extension of a file as it stands, with that of its compression."""
    return "".join(filter(None, (ending(path), path.name[len(plain_name(path)) :].lower()))) or "no ending"


def endings(pairs: Iterable[str]) -> dict[str, str]:
    """ENDING=FORMAT pairs → extension, with its dot, → name of the format."""
    formats = {}
    for pair in pairs:
        suffix, _, name = (part.strip() for part in pair.partition("="))
        if name not in FORMATS or not suffix:
            raise QontextError(f"{pair!r} is not ENDING=FORMAT, with one of {', '.join(FORMATS)}")
        formats[f".{suffix.lower().removeprefix('.')}"] = name
    return formats


def format_of(path: Path, read_as: Mapping[str, str]) -> str | None:
    """The name of the format of a file: by its extension, of which `read_as` has some more, or, without one, by its name;
    `text` if its content is text, whatever its extension; None if it is not read."""
    known = {**_OF_ENDING, **read_as}.get(ending(path))
    return known or ("text" if _is_named_text(path) or is_other_text(path, read_as) else None)


def _is_named_text(path: Path) -> bool:
    name, _, rest = plain_name(path).lower().partition(".")
    return rest in ("", "debian") and name in TEXTS


def is_other_text(path: Path, read_as: Mapping[str, str]) -> bool:
    """True if the file has none of the known extensions, and its content is text."""
    if _is_named_text(path) or ending(path) in {*_OF_ENDING, *_NOT_TEXTS, *read_as}:
        return False
    media = _MEDIA.guess_type(f"x{ending(path)}")[0] or ""
    if media.startswith(("image/", "audio/", "video/", "font/")) or not path.is_file():
        return False
    return _starts_as_text(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=65_536)
def _starts_as_text(path: Path, changed: int) -> bool:
    """True if the first characters are UTF-8, or UTF-16 with a mark, or another encoding of mostly letters, without control
    characters."""
    try:
        with open_bytes(path) as file:
            head = file.read(_HEAD)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return False
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = head.decode("utf-16", "ignore")
    else:
        try:
            text = codecs.getincrementaldecoder("utf-8")().decode(head)
        except UnicodeDecodeError:
            text = head.decode("cp1252", "replace")
            if len(re.findall(r"[A-Za-z\s]", text)) < 0.7 * len(text):
                return False
    return bool(text.strip()) and not re.search("[\0-\x07\x0e-\x1a\x1c-\x1f\x7f\ufffd]", text)


def is_installed(name: str) -> bool:
    """True if the format's package is installed."""
    package = FORMATS[name].package
    return package is None or find_spec(package) is not None


def reader(path: Path, name: str, read_as: Mapping[str, str]) -> Reader:
    """The reader of a file of this format."""
    place = "text:read_other" if is_other_text(path, read_as) else FORMATS[name].reader
    module, _, function = place.partition(":")
    read: Reader = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    return read


def read_bytes(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """The file's content, decompressed if necessary; the size that a compressed file declares is not trusted."""
    with open_bytes(path) as file:
        content: bytes = file.read(most + 1)
    if len(content) > most:
        raise Unreadable("too large", f"the file is larger than {most >> 20} MiB")
    return content


def read_text(path: Path, encoding: str) -> str:
    """The file's text, without a byte-order mark and with normalized line ends."""
    content = read_bytes(path)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise Unreadable("wrong encoding", wrong_encoding(error, "").message, line=line) from None
    if "\0" in text:
        raise Unreadable("NUL bytes", "its text contains NUL characters")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


_SUPERSETS = {"gb2312": "gbk", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "cp950"}
"""Encodings with the further characters of files that declare these."""


def decode(content: bytes, declared: str | None, encoding: str) -> str:
    """The text of a document that may declare its encoding; the fallback is Windows-1252. An encoding holds if at most one
    in twenty of the characters beyond ASCII is invalid."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace").replace("\0", "")
    for charset in (declared, encoding):
        try:
            name = codecs.lookup(charset or encoding).name
            text = content.decode(_SUPERSETS.get(name, name), "replace").replace("\0", "")
        except (LookupError, ValueError):
            continue
        invalid = text.count("\ufffd")
        others = len(text) - len(text.encode("ascii", "ignore")) - invalid
        if invalid <= min(others, max(1, others / 20)) and not name.startswith(("utf-16", "utf-32")):
            return text.removeprefix("\ufeff")
    return content.decode("cp1252", "replace").replace("\0", "")


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


def under_title(parts: Iterable[HeadingOrBlock]) -> tuple[str, tuple[Block, ...]]:
    """(title, blocks). The first heading is the title, and not part of the path, if it is the only one of its level."""
    parts = list(parts)
    titles = [(part[0], part[1].text) for part in parts if isinstance(part, tuple)]
    levels = [level for level, _ in titles]
    title = titles[0][1] if titles else ""
    only = bool(title) and levels.count(levels[0]) == 1 and levels[0] == min(levels)
    return title, tuple(replace(block, headings=block.headings[only:]) for block in under_headings(parts))


def collapse(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())


def stem(path: Path) -> str:
    """The file name without extension, the title of a document without one."""
    return re.sub(r"\.\w+(\.gz|\.zst|\.xz)?$", "", printable(path.name))
