"""Jupyter notebooks: Markdown cells with their headings, code cells as code. Outputs are removed.
The place of a block is its cell, counted from 1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from qontext.corpus.sources.formats import markdown
from qontext.corpus.sources.formats.base import FileText, HeadingOrBlock, Unreadable, read_bytes, stem
from qontext.data.records import Block


def read(path: Path, encoding: str) -> Iterator[FileText]:
    try:
        cells = [(str(cell["cell_type"]), _source(cell)) for cell in json.loads(read_bytes(path))["cells"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unreadable(
            "damaged document", "is not a version 4 notebook (JSON with a list of cells)"
        ) from None
    title, blocks = markdown.under_title(_parts(cells))
    yield FileText(title or stem(path), tuple(blocks))


def _parts(cells: list[tuple[str, str]]) -> Iterator[HeadingOrBlock]:
    """The blocks and headings of all cells; a heading applies to the cells after it."""
    for number, (kind, text) in enumerate(cells, 1):
        if kind == "code" and text.strip():
            yield Block(text.rstrip("\n"), cell=number, code=True)
        for part in markdown.parts(text) if kind == "markdown" else ():
            if isinstance(part, tuple):
                yield part[0], replace(part[1], line=None, cell=number)
            elif part is not None:
                yield replace(part, line=None, cell=number)


def _source(cell: Any) -> str:
    """The text of a cell, with normalized line ends."""
    source = cell["source"] or ""
    text = "".join(source) if isinstance(source, list) else str(source)
    return text.replace("\r\n", "\n").replace("\r", "\n")
