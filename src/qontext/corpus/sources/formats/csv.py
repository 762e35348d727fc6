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
_NUMBER = re.compile(r"[+-]?\.?\d")
"""The beginning of a number or date."""
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
    rows = _rows(reader)
    begin = list(itertools.islice(rows, 2))
    names = begin[0][1] if _has_names([cells for _, cells in begin]) else []
    for line, cells in itertools.chain(begin[bool(names) :], rows):
        pairs = itertools.zip_longest(names, cells, fillvalue="")
        named = [f"{name}: {cell}" if name else cell for name, cell in pairs if cell]
        yield Block("; ".join(named), line=line, tight=True, code=True)


def _rows(reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of the rows that are not empty."""
    line = 1
    for row in reader:
        cells, first, line = list(map(collapse, row)), line, reader.line_num + 1  # type: ignore[attr-defined]
        if any(cells):
            yield first, cells


def _has_names(rows: list[list[str]]) -> bool:
    """True if the first of two rows names the columns. The column of row names may have none if the others
    have numbers."""
    names = rows[0] if rows else []
    if len(names) < 2 or not all(names[1:]) or any(cell[:1].isdigit() for cell in names):
        return False
    below = rows[1] if len(rows) > 1 else []
    return bool(names[0]) or any(map(_NUMBER.match, below))
