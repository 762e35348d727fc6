"""CSV: a sentence per row, which names the columns if the first row does: "name: Ada; born: 1815"."""

from __future__ import annotations

import csv
import io
import itertools
import re
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

_QUOTED = re.compile(r'(?:^|(?<=[,;\t|]))"(?:[^"]|"")*"', re.MULTILINE)
"""A cell in quotation marks."""
_HEAD = 1 << 16
"""Characters in which the delimiter is counted."""


def read(path: Path, encoding: str) -> Iterator[FileText]:
    text = decode(read_bytes(path, LARGEST_MARKUP), None, encoding)
    head = _QUOTED.sub("", text.lstrip()[:_HEAD]).partition("\n")[0]
    delimiter = max(",;\t|", key=head.count)
    csv.field_size_limit(max(csv.field_size_limit(), LARGEST_MARKUP))
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
            # The column of row numbers may have no name.
            is_header = all(cells[1:]) and not any(cell[:1].isdigit() for cell in cells) and len(cells) > 1
            names = cells if is_header else []
            if is_header:
                continue
        pairs = itertools.zip_longest(names, cells, fillvalue="")
        named = [f"{name}: {cell}" if name else cell for name, cell in pairs if cell]
        yield Block("; ".join(named), line=first, tight=True, code=True)
