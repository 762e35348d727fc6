"""CSV: a sentence per row, which names the columns if the first row does: "name: Ada; born: 1815"."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from qontext.corpus.sources.formats.base import (
    LARGEST_MARKUP,
    FileText,
    Unreadable,
    collapse,
    decode,
    read_bytes,
    stem,
)
from qontext.data.records import Block


def read(path: Path, encoding: str) -> Iterator[FileText]:
    text = decode(read_bytes(path, LARGEST_MARKUP), None, encoding)
    head = text.lstrip().partition("\n")[0]
    delimiter = max(",;\t|", key=head.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        yield FileText(stem(path), tuple(_blocks(reader)))
    except csv.Error as error:
        raise Unreadable("damaged document", f"is not a readable CSV file ({error})") from None


def _blocks(reader: Iterator[list[str]]) -> Iterator[Block]:
    names: list[str] | None = None
    line = 1
    for row in reader:
        cells, first, line = list(map(collapse, row)), line, reader.line_num + 1  # type: ignore[attr-defined]
        if not any(cells):
            continue
        if names is None:
            is_header = len(cells) > 1 and all(cell and not cell[0].isdigit() for cell in cells)
            names = cells if is_header else []
            if is_header:
                continue
        named = [f"{names[n]}: {cell}" if n < len(names) else cell for n, cell in enumerate(cells) if cell]
        yield Block("; ".join(named), line=first, tight=True, code=True)
