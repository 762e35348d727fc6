"""Document formats: one file per format, and a table of file extensions. A reader yields the documents of a
file as blocks of text, each with its headings and place.
"""

from __future__ import annotations

import codecs
import importlib
import mimetypes
import stat
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from qontext.corpus.sources.formats.base import Reader
from qontext.corpus.sources.lines import ending, read_blocks
from qontext.data.lines import plain_name
from qontext.frame.errors import QontextError


class DocumentFormat(NamedTuple):
    """The module of a format's ``read``, and the optional package that it needs."""

    module: str
    endings: tuple[str, ...]
    package: str | None = None


_HERE = "qontext.corpus.sources.formats"

_CODE = (
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".java", ".kt", ".scala", ".go", ".rs", ".swift",
    ".js", ".mjs", ".jsx", ".ts", ".tsx", ".rb", ".php", ".pl", ".lua", ".r", ".jl", ".sh", ".sql",
)  # fmt: skip

FORMATS: dict[str, DocumentFormat] = {
    "text": DocumentFormat(f"{_HERE}.plain", (".txt",)),
    "csv": DocumentFormat(f"{_HERE}.csv", (".csv",)),
    "markdown": DocumentFormat(f"{_HERE}.markdown", (".md", ".markdown", ".mdx")),
    "rst": DocumentFormat(f"{_HERE}.rst", (".rst",)),
    "html": DocumentFormat(f"{_HERE}.html", (".html", ".htm", ".xhtml")),
    "notebook": DocumentFormat(f"{_HERE}.notebook", (".ipynb",)),
    "mail": DocumentFormat(f"{_HERE}.mail", (".eml", ".mbox")),
    "docx": DocumentFormat(f"{_HERE}.docx", (".docx",)),
    "epub": DocumentFormat(f"{_HERE}.epub", (".epub",)),
    "pdf": DocumentFormat(f"{_HERE}.pdf", (".pdf",), "pypdfium2"),
    "code": DocumentFormat(
        f"{_HERE}.code",
        _CODE,
    ),
}

_OF_ENDING = {suffix: name for name, kind in FORMATS.items() for suffix in kind.endings}


def endings(pairs: Iterable[str]) -> dict[str, str]:
    """ENDING=FORMAT pairs → extension, with its dot, → name of the format."""
    formats = {}
    for pair in pairs:
        suffix, sign, name = pair.partition("=")
        suffix = suffix.strip().lower().removeprefix(".")
        if not (sign and suffix) or {*suffix} & {".", "/"}:
            raise QontextError(f"{pair!r} is not an extension and a format, such as pm=text")
        if (name := name.strip()) not in FORMATS:
            raise QontextError(f"unknown format {name!r}: choose from {', '.join(FORMATS)}")
        formats[f".{suffix}"] = name
    return formats


TEXTS = frozenset(
    "authors bugs changelog changes contributing copying copyright credits faq history install licence license news notes "
    "readme thanks todo".split()
)
"""Names of text files without an extension, or with Debian's."""


NOT_TEXTS = frozenset({".css", ".map", ".lock", ".json", ".jsonl", ".tsv", ".parquet"})
"""Endings of text files that are not documents."""
_HEAD = 8_192
_MEDIA = mimetypes.MimeTypes(filenames=())


_NONE: Mapping[str, str] = MappingProxyType({})


def format_of(path: Path, read_as: Mapping[str, str] = _NONE) -> str | None:
    """The name of the format of a file: by its extension, of which `read_as` has some more, or, without one, by its name;
    `text` if its content is text, whatever its extension; None if it is not read."""
    if (chosen := read_as.get(ending(path))) is not None:
        return chosen
    name, _, rest = plain_name(path).lower().partition(".")
    if rest in ("", "debian") and name in TEXTS:
        return "text"
    return _OF_ENDING.get(ending(path)) or ("text" if is_other_text(path) else None)


def is_other_text(path: Path, read_as: Mapping[str, str] = _NONE) -> bool:
    """True if the file has none of the known extensions, and its content is text."""
    name, _, rest = plain_name(path).lower().partition(".")
    known = {*_OF_ENDING, *NOT_TEXTS, *read_as}
    if (rest in ("", "debian") and name in TEXTS) or ending(path) in known:
        return False
    media = _MEDIA.guess_type(f"x{ending(path)}")[0] or ""
    if media.startswith(("image/", "audio/", "video/", "font/")):
        return False
    try:
        about = path.stat()
        return stat.S_ISREG(about.st_mode) and _starts_as_text(path, about.st_size, about.st_mtime_ns)
    except OSError:
        return False


@lru_cache(maxsize=65_536)
def _starts_as_text(path: Path, size: int, changed: int) -> bool:
    """True if the first characters are UTF-8, or UTF-16 with a mark, or another encoding of mostly letters, without control
    characters."""
    try:
        head = next(read_blocks(path, lambda amount: None), b"")[:_HEAD]
    except (OSError, ValueError):
        return False
    if not head.strip():
        return False
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = head.decode("utf-16", "ignore")
    else:
        try:
            text = codecs.getincrementaldecoder("utf-8")().decode(head)
        except UnicodeDecodeError:
            text = head.decode("cp1252", "replace")
            if sum(
                (character.isalpha() and character.isascii()) or character.isspace() for character in text
            ) < 0.7 * len(text):
                return False
    return not any((ord(c) < 32 and c not in "\t\n\r\f\x1b\x08") or c in "\x7f\ufffd" for c in text)


def shown_ending(path: Path) -> str:
    """The extension of a file as it stands, with that of its compression."""
    return "".join(filter(None, (ending(path), path.name[len(plain_name(path)) :].lower()))) or "no ending"


def is_installed(name: str) -> bool:
    """True if the format's package is installed."""
    package = FORMATS[name].package
    return package is None or find_spec(package) is not None


def reader(name: str) -> Reader:
    """The format's ``read`` function."""
    read: Reader = importlib.import_module(FORMATS[name].module).read
    return read
