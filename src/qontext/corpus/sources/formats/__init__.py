"""Document formats: one file per format, and a table of file extensions. A reader yields the documents of a
file as blocks of text, each with its headings and place.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from qontext.corpus.sources.formats.base import Reader
from qontext.corpus.sources.lines import ending
from qontext.data.compression import plain_name


class Format(NamedTuple):
    """The module of a format's ``read``, and the optional package that it needs."""

    module: str
    endings: tuple[str, ...]
    package: str | None = None


_HERE = "qontext.corpus.sources.formats"

_CODE = (
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".java", ".kt", ".scala", ".go", ".rs", ".swift",
    ".js", ".mjs", ".jsx", ".ts", ".tsx", ".rb", ".php", ".pl", ".lua", ".r", ".jl", ".sh", ".sql",
)  # fmt: skip

FORMATS: dict[str, Format] = {
    "text": Format(f"{_HERE}.plain", (".txt",)),
    "markdown": Format(f"{_HERE}.markdown", (".md", ".markdown", ".mdx")),
    "rst": Format(f"{_HERE}.rst", (".rst",)),
    "html": Format(f"{_HERE}.html", (".html", ".htm", ".xhtml")),
    "notebook": Format(f"{_HERE}.notebook", (".ipynb",)),
    "mail": Format(f"{_HERE}.mail", (".eml", ".mbox")),
    "docx": Format(f"{_HERE}.docx", (".docx",)),
    "epub": Format(f"{_HERE}.epub", (".epub",)),
    "pdf": Format(f"{_HERE}.pdf", (".pdf",), "pypdfium2"),
    "code": Format(
        f"{_HERE}.code",
        _CODE,
    ),
}

_OF_ENDING = {suffix: name for name, kind in FORMATS.items() for suffix in kind.endings}


TEXTS = frozenset(
    "authors bugs changelog changes contributing copying copyright credits faq history install licence license news notes "
    "readme thanks todo".split()
)
"""Names of text files without an extension, or with Debian's."""


def format_of(path: Path) -> str | None:
    """The name of the format for a file, by its extension or, without one, by its name; None if unknown."""
    name, _, rest = plain_name(path).lower().partition(".")
    if rest in ("", "debian") and name in TEXTS:
        return "text"
    return _OF_ENDING.get(ending(path))


def is_installed(name: str) -> bool:
    """Whether the format's package is installed."""
    package = FORMATS[name].package
    return package is None or find_spec(package) is not None


def reader(name: str) -> Reader:
    """The format's ``read`` function."""
    read: Reader = importlib.import_module(FORMATS[name].module).read
    return read
