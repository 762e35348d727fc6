"""Jupyter notebooks: Markdown cells with their headings, code cells as code. Outputs are removed.
The place of a block is its cell, counted from 1."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from qontext.corpus.sources.formats import markdown
from qontext.corpus.sources.formats.base import FileText, Unreadable, read_bytes, stem


def read(path: Path, encoding: str) -> Iterator[FileText]:
    try:
        cells = [(str(cell["cell_type"]), _source(cell)) for cell in json.loads(read_bytes(path))["cells"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unreadable(
            "damaged document", "is not a version 4 notebook (JSON with a list of cells)"
        ) from None
    # As one Markdown text, so that a heading applies to the cells after it.
    texts = [
        (number, _fenced(text) if kind == "code" else text)
        for number, (kind, text) in enumerate(cells, 1)
        if kind in ("code", "markdown") and text.strip()
    ]
    lines = accumulate((text.count("\n") + 2 for _, text in texts), initial=1)
    starts, numbers = list(lines)[:-1], [number for number, _ in texts]
    title, blocks = markdown.parse("\n\n".join(text for _, text in texts))
    placed = (
        replace(block, line=None, cell=block.line and numbers[bisect_right(starts, block.line) - 1])
        for block in blocks
    )
    yield FileText(title or stem(path), tuple(placed))


def _source(cell: Any) -> str:
    source = cell["source"]
    return "".join(source) if isinstance(source, list) else str(source)


def _fenced(code: str) -> str:
    fence = "`" * 3
    while fence in code:
        fence += "`"
    return f"{fence}\n{code}\n{fence}" if code.strip() else ""
