"""Source code, unchanged. In Python files, classes and functions are the headings. Files with very long lines
are generated or minified, and are skipped.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from qontext.corpus.sources.formats.base import FileText, Unreadable, read_text
from qontext.corpus.sources.lines import ending
from qontext.data.records import Block
from qontext.frame.errors import printable

LARGEST, LONGEST_LINES = 4 << 20, 300
"""Maximum bytes of a file, and average characters per line; larger files are considered generated."""


def read(path: Path, encoding: str) -> Iterator[FileText]:
    if path.stat().st_size > LARGEST:
        raise Unreadable("generated code", f"the file is larger than {LARGEST >> 20} MiB")
    text = read_text(path, encoding, LARGEST)
    if len(text) > LONGEST_LINES * (text.count("\n") + 1):
        raise Unreadable("generated code", "its lines are too long; the code is probably generated")
    cuts = _definitions(text) if ending(path) in (".py", ".pyi") else []
    yield FileText(printable(path.name), tuple(_blocks(text, cuts)))


def _blocks(text: str, cuts: list[tuple[int, tuple[str, ...]]]) -> Iterator[Block]:
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
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    cuts: list[tuple[int, tuple[str, ...]]] = []
    _cut(tree.body, (), cuts)
    return cuts


def _cut(body: list[ast.stmt], above: tuple[str, ...], cuts: list[tuple[int, tuple[str, ...]]]) -> None:
    after = False
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = (*above, node.name)
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            cuts.append((first, name))
            if isinstance(node, ast.ClassDef):
                _cut(node.body, name, cuts)
            after = True
        elif after:
            cuts.append((node.lineno, above))
            after = False
