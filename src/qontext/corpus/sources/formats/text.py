"""Plain text, source code, tables and notebooks, whose lines are kept.

In Python files, classes and functions are the headings. A row of a table is a line that names its columns, if the first row
does: "name: Ada; born: 1815". In a notebook, the place of a block is its cell; outputs are left out.
"""

from __future__ import annotations

import ast
import csv
import io
import itertools
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from qontext.corpus.sources.formats import (
    LARGEST_TEXT,
    FileText,
    HeadingOrBlock,
    Unreadable,
    collapse,
    decode,
    markdown,
    read_bytes,
    read_text,
    stem,
    under_title,
)
from qontext.data.lines import ending
from qontext.data.records import Block
from qontext.frame.errors import printable

_LONGEST_LINES, _LONGEST_CODE_LINES = 1_000, 300
"""Average characters per line; the text of files with longer lines is generated."""
_QUOTED = re.compile(r'(?:^|(?<=[,;\t|]))"(?:[^"]|"")*"', re.MULTILINE)
"""A cell in quotation marks."""
_NUMBER = re.compile(r"[+-]?\.?\d")
"""The beginning of a number or date."""


def read_plain(path: Path, encoding: str) -> Iterator[FileText]:
    yield FileText(stem(path), (Block(read_text(path, encoding), line=1),))


def read_other(path: Path, encoding: str) -> Iterator[FileText]:
    """A file with an unknown ending whose content is text, in whatever encoding."""
    text = decode(read_bytes(path), None, encoding).replace("\r\n", "\n")
    _refuse_generated(text, _LONGEST_LINES)
    yield FileText(path.name, (Block(text, line=1),))


def read_code(path: Path, encoding: str) -> Iterator[FileText]:
    text = read_text(path, encoding)
    _refuse_generated(text, _LONGEST_CODE_LINES)
    cuts = _definitions(text) if ending(path) in (".py", ".pyi") else []
    yield FileText(printable(path.name), tuple(_stretches(text, cuts)))


def _refuse_generated(text: str, most: int) -> None:
    if len(text) > most * (text.count("\n") + 1):
        raise Unreadable("generated code", "its lines are too long; it is probably generated")


def _stretches(text: str, cuts: list[tuple[int, tuple[str, ...]]]) -> Iterator[Block]:
    """The lines from each cut (line, headings) to the next."""
    lines = text.split("\n")
    starts = [(1, ()), *cuts]
    ends = [line for line, _ in starts[1:]] + [len(lines) + 1]
    for (first, headings), end in zip(starts, ends):
        stretch = lines[first - 1 : end - 1]
        empty = next((n for n, line in enumerate(stretch) if line.strip()), len(stretch))
        if body := "\n".join(stretch[empty:]).rstrip():
            yield Block(body, headings, line=first + empty, code=True)


def _definitions(text: str) -> list[tuple[int, tuple[str, ...]]]:
    """The start lines of a Python module's classes and functions (with decorators), and of the code after them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in third-party code
            return list(_cuts(ast.parse(text).body, ()))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _cuts(body: list[ast.stmt], above: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    after = False
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = (*above, node.name)
            yield min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]), name
            if isinstance(node, ast.ClassDef):
                yield from _cuts(node.body, name)
            after = True
        elif after:
            yield node.lineno, above
            after = False


def read_csv(path: Path, encoding: str) -> Iterator[FileText]:
    text = decode(read_bytes(path), None, encoding)
    head = _QUOTED.sub("", text.lstrip()[: 1 << 16]).partition("\n")[0]
    csv.field_size_limit(LARGEST_TEXT)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t|", key=head.count))
    try:
        yield FileText(stem(path), tuple(_sentences(reader)))
    except csv.Error as error:
        raise Unreadable("damaged document", f"is not a readable CSV file ({error})") from None


def _sentences(reader: Any) -> Iterator[Block]:
    rows = _rows(reader)
    begin = list(itertools.islice(rows, 2))
    names = begin[0][1] if _has_names([cells for _, cells in begin]) else []
    for line, cells in itertools.chain(begin[bool(names) :], rows):
        pairs = itertools.zip_longest(names, cells, fillvalue="")
        named = [f"{name}: {cell}" if name else cell for name, cell in pairs if cell]
        yield Block("; ".join(named), line=line, tight=True, code=True)


def _rows(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of the rows that are not empty."""
    line = 1
    for row in reader:
        cells, first, line = list(map(collapse, row)), line, reader.line_num + 1
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


def read_notebook(path: Path, encoding: str) -> Iterator[FileText]:
    try:
        cells = [
            (cell["cell_type"], "".join(cell["source"] or ""))
            for cell in json.loads(read_bytes(path))["cells"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unreadable("damaged document", "is not a notebook (JSON with a list of cells)") from None
    title, blocks = under_title(_cell_parts(cells))
    yield FileText(title or stem(path), blocks)


def _cell_parts(cells: list[tuple[str, str]]) -> Iterator[HeadingOrBlock]:
    """The blocks and headings of all cells; a heading applies to the cells after it."""
    for number, (kind, text) in enumerate(cells, 1):
        text = "\n".join(text.splitlines())
        if kind == "code" and text.strip():
            yield Block(text, cell=number, code=True)
        for part in markdown.parts(text) if kind == "markdown" else ():
            if isinstance(part, tuple):
                yield part[0], replace(part[1], line=None, cell=number)
            elif part is not None:
                yield replace(part, line=None, cell=number)
