"""Jupyter notebooks: Markdown cells with their headings, code cells as code. Outputs are removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext.corpus.sources.formats import markdown
from qontext.corpus.sources.formats.base import Text, Unreadable, read_bytes, stem


def read(path: Path, encoding: str) -> Iterator[Text]:
    try:
        cells = [(str(cell["cell_type"]), _source(cell)) for cell in json.loads(read_bytes(path))["cells"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unreadable(
            "damaged document", "is not a version 4 notebook (JSON with a list of cells)"
        ) from None
    # As one Markdown text, so that a heading applies to the cells after it.
    texts = [
        _fenced(text) if kind == "code" else text for kind, text in cells if kind in ("code", "markdown")
    ]
    title, blocks = markdown.parse("\n\n".join(text for text in texts if text.strip()), line=0)
    yield Text(title or stem(path), tuple(blocks))


def _source(cell: Any) -> str:
    source = cell["source"]
    return "".join(source) if isinstance(source, list) else str(source)


def _fenced(code: str) -> str:
    fence = "`" * 3
    while fence in code:
        fence += "`"
    return f"{fence}\n{code}\n{fence}" if code.strip() else ""
