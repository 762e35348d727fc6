"""Docstrings out of source code, and summaries out of docstrings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qontext.corpus.sources.pydocs import docstrings, has_prose, split_summary

SOURCE = b'''
"""The module."""
import no_such_module
raise SystemExit("never run")
if True:
    def under_if():
        """Under an if."""
        def inner():
            """Inside a function."""
try:
    async def under_try():
        "Under a try."
except ImportError:
    def in_handler():
        """In a handler."""
class Outer:
    """A class.

        Indented.
    Not.
    """
    def method(self):
        r"""A \\method."""
    class Inner:
        def deep(self):
            """Deep."""
    def _private(self):
        """Private."""
class _Hidden:
    def method(self):
        """Hidden with its class."""
def bare(): ...
def formatted():
    f"""Not a docstring."""
'''


def test_docstrings_of_public_objects_by_qualified_name() -> None:
    assert docstrings(SOURCE) == [
        ("", "The module."),
        ("under_if", "Under an if."),
        ("under_try", "Under a try."),
        ("in_handler", "In a handler."),
        ("Outer", "A class.\n\n    Indented.\nNot."),
        ("Outer.method", "A \\method."),
        ("Outer.Inner.deep", "Deep."),
    ]


def test_the_encoding_that_a_file_declares_is_used() -> None:
    assert docstrings('# coding: latin-1\n"""Déjà vu."""'.encode("latin-1")) == [("", "Déjà vu.")]


@pytest.mark.parametrize(
    "source",
    [
        b"def f(:",
        b"print 'old'",
        b'"""\xff"""',
        b"x = '\0'",
        b"x = " + b"(" * 5000,
        b"x = " + b"-" * 10**6 + b"1",
    ],
)
def test_what_does_not_parse_is_an_ordinary_error(source: bytes) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        docstrings(source)


WORDS = " ".join(["word"] * 20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WORDS, True),
        (WORDS.removesuffix("word"), False),
        (f">>> {WORDS}", False),
        (f">>> f()\n{WORDS}", False),  # what a doctest prints
        (f">>> f()\n3\n\n{WORDS}", True),
        (f"{WORDS}\0", False),
        (f"{WORDS}\ud800", False),
    ],
)
def test_prose(text: str, expected: bool) -> None:
    assert has_prose(text) is expected


@pytest.mark.parametrize(
    ("docstring", "summary", "rest"),
    [
        ("Return the sum.", "Return the sum.", ""),
        ("Return the sum.\n\nArgs: x", "Return the sum.", "Args: x"),
        ("Return the\n    sum of x. More of it.\n\nEnd.", "Return the sum of x.", "More of it.\n\nEnd."),
        ("No full stop\n\nMore.", "No full stop", "More."),
        ("Take some, e.g. Two or i.e. Three. Next.", "Take some, e.g. Two or i.e. Three.", "Next."),
        ("Version 2.0 of os.path is out. Yes.", "Version 2.0 of os.path is out.", "Yes."),
        ('Say "yes." Then go.', 'Say "yes."', "Then go."),
        ("Is it? Maybe.", "Is it?", "Maybe."),
        ("The title\n=========\nText here.", "The title", "Text here."),
        ("f(x, y=(1, 2)) -> int\n\nReturn one. Or two.", "Return one.", "f(x, y=(1, 2)) -> int\n\nOr two."),
        (">>> f()\n1", "", ">>> f()\n1"),
        (":param x: this", "", ":param x: this"),
        ("", "", ""),
        ("  \n ", "", ""),
    ],
)
def test_the_summary_is_the_first_sentence(docstring: str, summary: str, rest: str) -> None:
    assert split_summary(docstring) == (summary, rest)


def test_summary_and_rest_hold_every_word_of_real_docstrings() -> None:
    texts = [
        text
        for path in Path(json.__file__).parent.parent.glob("[a-j]*.py")
        for _, text in docstrings(path.read_bytes())
    ]
    assert len(texts) > 500
    for text in texts:
        summary, rest = split_summary(text)
        lost = [
            word for word in text.split() if word.strip("=-~*#^\"'`+.") and word not in f"{summary} {rest}"
        ]
        assert not lost, (text, lost)
        assert len(summary.split()) + len(rest.split()) >= len(text.split()) - 1
    assert sum(1 for text in texts if split_summary(text)[0]) > 0.95 * len(texts)
