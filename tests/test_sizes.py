"""Modules and functions stay small enough to be read at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import qontext

ROOT = Path(qontext.__file__).parent
MODULE, FUNCTION = 400, 60
"""The most lines of a module and of a function. A guide: half a noun is as bad as two."""

LARGER: dict[str, int] = {}
"""Modules, and functions as module:name, that are larger for now → how many lines they have. It only shrinks."""


def modules() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}


def functions(source: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of the functions and methods, with their decorators."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - first + 1


def sizes() -> dict[str, tuple[int, int]]:
    """Name → lines and limit, of all modules and functions."""
    lengths = {}
    for name, source in modules().items():
        lengths[name] = (len(source.splitlines()), MODULE)
        for function, lines in functions(source):
            key = f"{name}:{function}"
            lengths[key] = (max(lines, lengths.get(key, (0, 0))[0]), FUNCTION)
    return lengths


def test_no_module_and_no_function_is_too_long() -> None:
    larger = {name: lines for name, (lines, limit) in sizes().items() if lines > limit}
    assert {name: lines for name, lines in larger.items() if lines > LARGER.get(name, 0)} == {}
    assert LARGER.keys() <= larger.keys(), "these are small enough by now: take them out of the list"


@pytest.mark.parametrize("lines", [FUNCTION, FUNCTION + 1])
def test_a_function_is_measured_with_its_decorators(lines: int) -> None:
    source = "@decorator\nasync def long():\n" + "    pass\n" * (lines - 2)
    assert dict(functions(source)) == {"long": lines}
