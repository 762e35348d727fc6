"""`pydocs:`: on a small tree of packages made here, and on what is installed; docstrings and their summaries."""

from __future__ import annotations

from pathlib import Path

import pytest

from qontext.corpus.sources import Problem, pydocs
from qontext.corpus.sources.pydocs import PyDocs, docstrings, has_prose, split_summary
from qontext.data.records import Document


def prose(start: str) -> str:
    return (
        f"{start} "
        "says enough words to be a passage of its own in this small corpus, which asks for at least twenty."
    )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages folder; every module would end the tests if it were imported."""
    files = {
        "zebra/__init__.py": f'"""{prose("Zebra")}"""\nraise SystemExit',
        "zebra/stripes.py": f'''
class Stripes:
    """{prose("Stripes")}"""
    @property
    def width(self):
        """{prose("Width")}"""
    @width.setter
    def width(self, value):
        """{prose("Setter")}"""
    def again(self):
        """{prose("Zebra")}"""
    def short(self):
        """Too short."""
raise SystemExit''',
        "zebra/tests/test_x.py": f'"""{prose("Tests")}"""',
        "zebra/test_y.py": f'"""{prose("A test")}"""',
        "zebra/_inner.py": f'"""{prose("Private")}"""',
        "zebra/broken.py": '"""Broken""" def',
        "zebra/plain.py": "x = 1",
        "zebra/large.py": f'"""{prose("Large")}"""\n' + "#" * 2_000_000,
        "ant.py": f'"""{prose("Ant")}"""',
        "space/deep/module.py": f'"""{prose("Namespace package")}"""',
        "_private.py": f'"""{prose("Private")}"""',
        "tests/__init__.py": f'"""{prose("Tests")}"""',
        "zebra-1.0.dist-info/x.py": f'"""{prose("Metadata")}"""',
        "zebra/note.txt": "text",
    }
    for name, content in files.items():
        path = tmp_path / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(pydocs, "_roots", lambda: [tmp_path / "first", tmp_path / "site-packages"])
    return tmp_path / "site-packages"


def documents_of(source: PyDocs) -> list[Document]:
    documents = list(source.documents())
    assert not [d for d in documents if isinstance(d, Problem)]
    assert source.bytes_read == source.bytes_total
    return [d for d in documents if isinstance(d, Document)]


def test_a_module_is_a_document_and_an_object_a_passage(site: Path) -> None:
    source = PyDocs("pydocs:zebra,ant,space")
    assert source.has_passages
    assert documents_of(source) == [
        Document("ant", "ant", "", str(site / "ant.py"), (("ant", prose("Ant")),)),
        Document(
            "space.deep.module",
            "space.deep.module",
            "",
            str(site / "space/deep/module.py"),
            (("space.deep.module", prose("Namespace package")),),
        ),
        Document("zebra", "zebra", "", str(site / "zebra/__init__.py"), (("zebra", prose("Zebra")),)),
        Document(
            "zebra.stripes",
            "zebra.stripes",
            "",
            str(site / "zebra/stripes.py"),
            (("zebra.stripes:Stripes", prose("Stripes")), ("zebra.stripes:Stripes.width", prose("Width"))),
        ),
    ]


def test_the_fingerprint_changes_with_what_would_be_read(site: Path) -> None:
    first = PyDocs.fingerprint("")
    assert first == PyDocs.fingerprint("")
    assert first != PyDocs.fingerprint("ant")
    (site / "zebra/note.txt").write_text("other text")
    assert first == PyDocs.fingerprint("")
    (site / "ant.py").write_text("x = 1")
    assert first != PyDocs.fingerprint("")


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
        ('Say "yes." Then go.', 'Say "yes."', "Then go."),
        ("The title\n=========\nText here.", "The title", "Text here."),
        ("f(x, y=(1, 2)) -> int\n\nReturn one. Or two.", "Return one.", "f(x, y=(1, 2)) -> int\n\nOr two."),
        (">>> f()\n1", "", ">>> f()\n1"),
        (":param x: this", "", ":param x: this"),
        ("", "", ""),
    ],
)
def test_the_summary_is_the_first_sentence(docstring: str, summary: str, rest: str) -> None:
    assert split_summary(docstring) == (summary, rest)
