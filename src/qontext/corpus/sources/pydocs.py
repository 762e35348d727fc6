"""`pydocs:` - the documentation of the Python packages on this machine, as a corpus that needs no download.

A module is a document, the docstring of each of its public objects a passage. Modules are read as text and
parsed, never imported. `pydocs:numpy,pandas` reads these packages only.
"""

from __future__ import annotations

import ast
import gc
import inspect
import itertools
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from qontext.corpus import parallel
from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.data.records import Document
from qontext.frame.errors import choose
from qontext.frame.files import digest_of, json_digest

_LARGEST_FILE = 2_000_000
_FILES_PER_BLOCK = 64
_TESTS = ("test", "tests", "conftest", "idle_test")


class PythonModule(NamedTuple):
    """A source file and its import name."""

    name: str
    path: Path
    size: int
    mtime_ns: int


class PyDocs(Source):
    """Documents by package, then path."""

    def __init__(self, uri: str) -> None:
        self.modules = _modules(uri)
        super().__init__(uri, has_passages=True, bytes_total=sum(module.size for module in self.modules))

    @classmethod
    def open(cls, uri: str, rest: str, fields: FieldNames) -> PyDocs:
        return cls(uri)

    @classmethod
    def fingerprint(cls, rest: str) -> str:
        """A hash of the files that the URI covers: names, sizes and modification times."""
        files = [(module.name, module.size, module.mtime_ns) for module in _modules(f"pydocs:{rest}")]
        return json_digest([rest, sys.version, files])

    def documents(self) -> Iterator[Document | Problem]:
        digests: set[bytes] = set()
        starts = range(0, len(self.modules), _FILES_PER_BLOCK)
        blocks = (self.modules[start : start + _FILES_PER_BLOCK] for start in starts)
        read = parallel.ordered_map(_read_block, blocks, 1 if len(starts) <= 4 else 0)
        for module, objects in zip(self.modules, itertools.chain.from_iterable(read)):
            self.advance(module.size)
            passages: dict[str, str] = {}
            for name, text in objects:
                id = f"{module.name}:{name}" if name else module.name
                digest = digest_of(text, 12)
                # If an object is defined twice (a property, an overload), the first docstring is used.
                if digest not in digests and id not in passages:
                    digests.add(digest)
                    passages[id] = text
            if passages:
                yield Document(module.name, module.name, "", str(module.path), tuple(passages.items()))


def _read_block(block: list[PythonModule]) -> list[list[tuple[str, str]]]:
    return [_read(module) for module in block]


def _read(module: PythonModule) -> list[tuple[str, str]]:
    """(qualified name, docstring) of the objects with enough text; none if the file cannot be parsed."""
    try:
        source = module.path.read_bytes() if module.size <= _LARGEST_FILE else b""
        # Parsing is slow, so files without multi-line docstrings are not parsed.
        if b'"""' not in source and b"'''" not in source:
            return []
        return [(name, text) for name, text in docstrings(source) if has_prose(text)]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _modules(uri: str) -> list[PythonModule]:
    """Every module that the URI covers, in order. If a package is found twice, the first one is used."""
    names = [name.strip() for name in uri.partition(":")[2].split(",") if name.strip()]
    packages: dict[str, Path] = {}
    for root in _roots():
        for path in _listed(root):
            name = path.name.removesuffix(".py")
            if _is_public(name) and (path.is_dir() or path.suffix == ".py"):
                packages.setdefault(name, path)
    packages.setdefault("qontext", Path(__file__).parents[2])
    for name in names:
        choose(name, packages, "installed Python package")
    return [module for name in sorted(names or packages) for module in _walk(packages[name], name)]


def _roots() -> list[Path]:
    """The standard library and all site-packages folders of this Python."""
    sites = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    return [Path(sysconfig.get_path("stdlib")), *map(Path, sites)]


def _walk(path: Path, name: str) -> Iterator[PythonModule]:
    """The module, or the package's modules in sorted order, without private ones and tests."""
    if path.is_dir():
        for child in _listed(path):
            if child.name == "__init__.py":
                yield from _walk(child, name)
            elif _is_public(child.stem) and child.suffix in (".py", ""):
                yield from _walk(child, f"{name}.{child.stem}")
    elif path.suffix == ".py" and path.is_file():
        status = path.stat()
        yield PythonModule(name, path, status.st_size, status.st_mtime_ns)


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if os.access(folder, os.R_OK | os.X_OK) else []


def _is_public(name: str) -> bool:
    is_test = name in _TESTS or name.startswith("test_") or name.endswith("_test")
    return name.isidentifier() and not name.startswith("_") and not is_test


FEWEST_WORDS = 20
"""Minimum prose of a docstring to be a passage."""

_Object = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_DOCTEST = re.compile(r"^[ \t]*>>>.*?(?=\n[ \t]*\n|\Z)", re.MULTILINE | re.DOTALL)
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")
_SIGNATURE = re.compile(r"[\w.]+\(.*\)(\s*->.*)?", re.DOTALL)
_UNDERLINE = re.compile(r"\n([^\w\s])\1{2,}[ \t]*(\n|$)")
_SENTENCE_END = re.compile(
    r"(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)(?<!\bcf)[.!?][\"'`)]*(?=\s+[A-Z\"'`(*:\[]|\s*$)"
)


def docstrings(source: bytes) -> list[tuple[str, str]]:
    """(qualified name, docstring) of a module, under an empty name, and of its public classes and functions.

    Objects inside private objects (``_x``) or functions are skipped. Raises SyntaxError or ValueError.
    """
    collects = gc.isenabled()
    gc.disable()  # a syntax tree has no cycles; searching for them takes a quarter of the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like in other people's code
            return list(_documented(ast.parse(source), ""))
    finally:
        if collects:
            gc.enable()


def has_prose(docstring: str) -> bool:
    """True if it has enough words besides its doctests, and only characters that can be encoded."""
    is_text = "\0" not in docstring and not any("\ud800" <= c <= "\udfff" for c in docstring)
    return is_text and len(_DOCTEST.sub("", docstring).split()) >= FEWEST_WORDS


def split_summary(docstring: str) -> tuple[str, str]:
    """(first sentence on one line, the rest). A leading signature is not a sentence.

    The summary is empty if the docstring starts with something else, such as a doctest or a field list.
    """
    before, text = "", docstring.strip()
    paragraph = _PARAGRAPH_END.split(text, maxsplit=1)[0]
    if _SIGNATURE.fullmatch(paragraph.strip()):
        before, text = paragraph, text[len(paragraph) :].lstrip()
        paragraph = _PARAGRAPH_END.split(text, maxsplit=1)[0]
    if not paragraph or paragraph.startswith((">>>", ":", "..", "-", "*", "@")):
        return "", docstring.strip()
    underline = _UNDERLINE.search(paragraph)
    sentence = _SENTENCE_END.search(paragraph)
    if underline and (not sentence or underline.start() < sentence.end()):
        summary, rest = text[: underline.start()], text[underline.end() :]
    else:
        end = sentence.end() if sentence else len(paragraph)
        summary, rest = text[:end], text[end:]
    return " ".join(summary.split()), f"{before}\n\n{rest.strip()}".strip()


def _documented(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Those of an object and below it: classes and functions, also those under an ``if``, a ``try`` or a ``with``."""
    is_object = isinstance(node, ast.Module | _Object)
    if is_object and (text := ast.get_docstring(node, clean=False)):  # type: ignore[arg-type]
        yield name, inspect.cleandoc(text)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If | ast.With | ast.Try | ast.ExceptHandler):
                yield from _documented(child, name)
            elif isinstance(child, _Object) and not child.name.startswith("_"):
                yield from _documented(child, f"{name}.{child.name}" if name else child.name)
