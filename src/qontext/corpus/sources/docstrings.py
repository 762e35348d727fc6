"""Docstrings of Python source code (parsed, never imported), and their summaries."""

from __future__ import annotations

import ast
import gc
import inspect
import re
import warnings
from collections.abc import Iterator

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
            tree = ast.parse(source)
        return list(_documented(tree, ""))
    except (RecursionError, MemoryError):  # what the parser raises for extreme nesting
        raise ValueError("nested too deeply") from None
    finally:
        if collects:
            gc.enable()


def has_prose(docstring: str) -> bool:
    """Whether it has enough words besides its doctests, and only characters that can be encoded."""
    try:
        docstring.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in docstring and len(_DOCTEST.sub("", docstring).split()) >= FEWEST_WORDS


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


def _documented(node: ast.Module | _Object, name: str) -> Iterator[tuple[str, str]]:
    text = ast.get_docstring(node, clean=False)
    if text:
        yield name, inspect.cleandoc(text)
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in _objects(node.body):
            if not child.name.startswith("_"):
                yield from _documented(child, f"{name}.{child.name}" if name else child.name)


def _objects(body: list[ast.stmt]) -> Iterator[_Object]:
    """Classes and functions, also those under an ``if``, a ``try`` or a ``with``."""
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        elif isinstance(statement, ast.If):
            yield from _objects(statement.body + statement.orelse)
        elif isinstance(statement, ast.With):
            yield from _objects(statement.body)
        elif isinstance(statement, ast.Try):
            handlers = [inner for handler in statement.handlers for inner in handler.body]
            yield from _objects(statement.body + handlers + statement.orelse + statement.finalbody)
