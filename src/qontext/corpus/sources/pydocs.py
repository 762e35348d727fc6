"""`pydocs:` - the documentation of the Python packages on this machine, as a corpus that needs no download.

A module is a document, the docstring of each of its public objects a passage. Modules are read as text and
parsed (`docstrings`), never imported. `pydocs:numpy,pandas` reads these packages only.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import qontext
from qontext.corpus import parallel
from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.corpus.sources.docstrings import docstrings, has_prose
from qontext.corpus.sources.docstrings import split_summary as split_summary
from qontext.data.records import Document
from qontext.frame.errors import QontextError

_LARGEST_FILE = 2_000_000
_FILES_PER_BLOCK = 64
_TESTS = ("test", "tests", "conftest", "idle_test")


class Module(NamedTuple):
    """A source file and its import name."""

    name: str
    path: Path
    size: int
    mtime_ns: int


class PyDocs(Source):
    """Documents by package, then path. `skipped` counts files that are too large or cannot be parsed."""

    def __init__(self, uri: str, roots: list[Path] | None = None) -> None:
        self.modules = _modules(uri, roots)
        self.skipped = 0
        super().__init__(uri, has_passages=True, bytes_total=sum(module.size for module in self.modules))

    @classmethod
    def open(cls, uri: str, rest: str, fields: FieldNames) -> PyDocs:
        return cls(uri)

    @classmethod
    def fingerprint(cls, rest: str) -> str:
        return fingerprint(f"pydocs:{rest}")

    def documents(self) -> Iterator[Document | Problem]:
        digests: set[bytes] = set()
        small = len(self.modules) <= 4 * _FILES_PER_BLOCK
        blocks = (
            self.modules[i : i + _FILES_PER_BLOCK] for i in range(0, len(self.modules), _FILES_PER_BLOCK)
        )
        read = parallel.ordered_map(_read_block, blocks, 1 if small else 0)
        for module, objects in zip(self.modules, itertools.chain.from_iterable(read)):
            self.advance(module.size)
            if objects is None:
                self.skipped += 1
                continue
            passages: dict[str, str] = {}
            for name, text in objects:
                id = f"{module.name}:{name}" if name else module.name
                digest = hashlib.blake2b(text.encode(), digest_size=12).digest()
                # If an object is defined twice (a property, an overload), the first docstring is used.
                if digest not in digests and id not in passages:
                    digests.add(digest)
                    passages[id] = text
            if passages:
                yield Document(module.name, module.name, "", str(module.path), tuple(passages.items()))


def fingerprint(uri: str, roots: list[Path] | None = None) -> str:
    """A hash of the files that `uri` covers: names, sizes and modification times."""
    files = [(module.name, module.size, module.mtime_ns) for module in _modules(uri, roots)]
    return hashlib.blake2b(json.dumps([uri, sys.version, files]).encode(), digest_size=16).hexdigest()


def _read_block(block: list[Module]) -> list[list[tuple[str, str]] | None]:
    return [_read(module) for module in block]


def _read(module: Module) -> list[tuple[str, str]] | None:
    """(qualified name, docstring) of the objects with enough text; None if the file is unreadable."""
    if module.size > _LARGEST_FILE:
        return None
    try:
        source = module.path.read_bytes()
        # Parsing is slow, so files without multi-line docstrings are not parsed.
        if b'"""' not in source and b"'''" not in source:
            return []
        return [(name, text) for name, text in docstrings(source) if has_prose(text)]
    except (OSError, SyntaxError, ValueError):
        return None


def _modules(uri: str, roots: list[Path] | None) -> list[Module]:
    """Every module that the URI covers, in order. If a package is found twice, the first one is used."""
    names = [name.strip() for name in uri.partition(":")[2].split(",") if name.strip()]
    packages: dict[str, Path] = {}
    for root in _roots() if roots is None else roots:
        for path in _listed(root):
            name = path.name.removesuffix(".py")
            if _is_public(name) and (path.is_dir() or path.suffix == ".py"):
                packages.setdefault(name, path)
    packages.setdefault("qontext", Path(qontext.__file__).parent)
    for name in names:
        if name not in packages:
            near = difflib.get_close_matches(name, packages, n=1)
            raise QontextError(
                f"no Python package {name!r} is installed",
                place=uri,
                remedy=f"Did you mean {near[0]!r}?"
                if near
                else "Name packages as they are imported: pydocs:numpy,pandas.",
            )
    return [module for name in sorted(names or packages) for module in _walk(packages[name], name)]


def _roots() -> list[Path]:
    """The standard library and all site-packages folders of this Python."""
    sites = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    return [Path(sysconfig.get_path("stdlib")), *map(Path, sites)]


def _walk(path: Path, name: str) -> Iterator[Module]:
    """The module, or the package's modules in sorted order, without private ones and tests."""
    if path.is_dir():
        for child in _listed(path):
            if child.name == "__init__.py":
                yield from _walk(child, name)
            elif _is_public(child.stem) and (child.suffix == ".py" or child.suffix == ""):
                yield from _walk(child, f"{name}.{child.stem}")
    elif path.suffix == ".py":
        try:
            status = path.stat()
        except OSError:
            return
        yield Module(name, path, status.st_size, status.st_mtime_ns)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder))
    except OSError:
        return []


def _is_public(name: str) -> bool:
    is_test = name in _TESTS or name.startswith("test_") or name.endswith("_test")
    return name.isidentifier() and not name.startswith("_") and not is_test
