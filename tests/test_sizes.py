"""The whole only shrinks. Modules and functions stay small enough to be read at once, folders to be seen at once; crumbs
join their neighbors.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.test_layers import imports

import qontext

ROOT = Path(qontext.__file__).parent
PROJECT = Path(__file__).parents[1]
TOTALS = {
    "LINES": 47621,
    "MODULES": 282,
    "TEST_LINES": 36861,
    "MANUAL_WORDS": 19465,
    "RESULT_WORDS": 19997,
}
"""The most lines and modules of the package, lines of tests, and words of the manual and of the pages of results. They only
fall: whoever adds a line takes one away."""

MODULE, FUNCTION = 400, 60
"""The most lines of a module and of a function. A guide: half a noun is as bad as two."""

FOLDER = 20
"""The most modules of a folder, apart from its subfolders."""
CRUMB = 60
"""A module with fewer lines and a single importer is part of that importer, unless it is `FOUND_BY_NAME`."""
FOUND_BY_NAME = (
    "integrations",
    "corpus/sources/formats",
    "__main__.py",
    "cluster/local.py",
    "adapt/demo.py",
    "cluster/recipe_processes.py",
)
"""Modules that are chosen or started by name: interfaces, formats, runners, verbs, and the processes of `adapt`."""

LARGER: dict[str, int] = {}
"""Modules, and functions as module:name, that are larger for now → how many lines they have. It only shrinks."""


def totals() -> dict[str, int]:
    tests = [path.read_text(encoding="utf-8") for path in (PROJECT / "tests").rglob("*.py")]
    pages = sorted((PROJECT / "docs").rglob("*.md"))
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in pages}
    results = sum(count for page, count in words.items() if page.parent.name == "results")
    return {
        "LINES": sum(len(source.splitlines()) for source in modules().values()),
        "MODULES": len(modules()),
        "TEST_LINES": sum(len(source.splitlines()) for source in tests),
        "MANUAL_WORDS": sum(words.values()) - results,
        "RESULT_WORDS": results,
    }


@pytest.mark.parametrize("name", TOTALS)
def test_the_whole_only_shrinks(name: str) -> None:
    assert totals()[name] <= TOTALS[name]


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


def test_folders_are_seen_at_once() -> None:
    count = Counter(path.parent for path in ROOT.rglob("*.py") if path.name != "__init__.py")
    assert {str(folder): n for folder, n in count.items() if n > FOLDER} == {}


def test_there_are_no_crumbs() -> None:
    importers = Counter(other for others in imports().values() for other in others)
    kinds = {kind for source in modules().values() for kind in re.findall(r'"(qontext[\w.]+):\w+"', source)}

    def is_crumb(name: str, source: str) -> bool:
        module = "qontext." + name.removesuffix(".py").replace("/", ".")
        is_small = len(source.splitlines()) < CRUMB and importers[module] <= 1
        return is_small and module not in kinds and not name.startswith(FOUND_BY_NAME)

    crumbs = [name for name, source in modules().items() if is_crumb(name, source)]
    assert [name for name in crumbs if not name.endswith("__init__.py")] == []


QUESTION = re.compile(r"(What|Whether|How|Where|That|Why)\b")


def docstrings(source: str) -> Iterator[tuple[ast.AST, int, str]]:
    """(node, line, text) of the docstrings of modules, classes, functions and fields."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        values = (
            [child.value for child in body if isinstance(child, ast.Expr)] if isinstance(body, list) else []
        )
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield node, value.lineno, value.value.strip()


def test_docstrings_say_the_thing() -> None:
    # "The number of texts", not "How many texts there are". A comment stands above a signature, not behind its end.
    questions, claims = [], []
    for name, source in modules().items():
        for node, line, text in docstrings(source):
            if QUESTION.match(text):
                questions.append(f"{name}:{line}: {text[:60]}")
            is_claim = isinstance(node, ast.FunctionDef) and text.startswith("True ")
            if is_claim and line == node.body[0].lineno and "bool" not in ast.unparse(node.returns):
                claims.append(f"{name}:{line}: {text[:60]}")
    assert questions == []
    assert claims == [], "they do not return a truth value"
    behind = re.compile(r"^\s*\)( -> .*)?:\s+#", re.MULTILINE)
    assert [name for name, source in modules().items() if behind.search(source)] == []


SAME = {"QontextRetriever", "SubQuery"}
"""Classes of one name that are one thing: a retriever for each framework, a sub-query and its form in a request."""


def test_a_name_is_that_of_one_thing() -> None:
    public = re.compile(
        r"^class ([A-Z]\w*)|^([A-Z]\w*[a-z]\w*) = (?:Literal|Mapping|dict|list|tuple)\[", re.MULTILINE
    )
    places = {name: {a or b for a, b in public.findall(source)} for name, source in modules().items()}
    count = Counter(one for names in places.values() for one in names)
    assert {one for one, n in count.items() if n > 1} - SAME == set()
