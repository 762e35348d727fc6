"""The architecture as imports: every module imports only from its own layer or one below, and nothing imports in a circle.

All imports count: at the top of a module, inside its functions, and those for types alone.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src"
LAYERS = (
    ("frame",),
    ("data",),
    ("models", "training"),
    ("corpus", "queries", "contexts", "pretrain", "finetune", "retrieve", "evaluation", "release"),
    ("workflow", "api"),
    ("adapt", "cluster"),
    ("serve",),
    ("integrations",),
    ("cli", "__main__", "__init__"),
    ("baselines",),
)
"""From the ground up. `frame.stages` names the verbs' modules as text and imports the one that is called, and tables name
kinds: nothing imports `baselines`."""


@cache
def imports() -> dict[str, set[str]]:
    """Module → the modules of the package that it imports, anywhere."""
    files = {_name(path): path for path in sorted((ROOT / "qontext").rglob("*.py"))}
    return {name: _imported(path, files) - {name} for name, path in files.items()}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def _imported(path: Path, files: dict[str, Path]) -> set[str]:
    names_imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names_imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            names_imported |= names if names <= files.keys() else names | {node.module}
    return {name for name in names_imported if name in files}


def layer(module: str) -> int:
    part = module.split(".")[1]
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def test_layers_import_downwards() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in others
        if layer(other) > layer(module)
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_in_a_circle() -> None:
    circles = [" → ".join(circle) for circle in strongly_connected(imports()) if len(circle) > 1]
    assert not circles, "\n".join(circles)


def strongly_connected(graph: dict[str, set[str]]) -> list[list[str]]:
    """Tarjan's algorithm: groups of modules that all reach each other."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            groups.append(stack[at:])
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return groups


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert sorted(map(sorted, strongly_connected(graph))) == [["a", "b", "c"], ["d"]]


@pytest.mark.parametrize("part", sorted({name for parts in LAYERS for name in parts if "__" not in name}))
def test_every_layer_exists(part: str) -> None:
    assert any(module.split(".")[1] == part for module in imports())
