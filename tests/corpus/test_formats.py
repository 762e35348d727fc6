"""Formats of text: what is read of a file, what is left out, and under which headings it stands."""

from __future__ import annotations

import json
import mailbox
from pathlib import Path

import pytest
from tests.corpus.reading import MARKDOWN, PAGE, message, read, sections, write

from qontext.corpus.sources import FieldNames, open_source
from qontext.data.records import Document


def test_html_is_its_main_part_by_headings(tmp_path: Path) -> None:
    document = read(write(tmp_path / "guide.html", PAGE))
    assert document.title == "The guide"
    assert sections(document) == [
        ((), "It is boldly written."),
        (("Install",), "a hammer"),
        (("Install",), "a nail"),
        (("Install",), "make\n  all"),
        (("Install",), "tool | price"),
        (("Install",), "saw"),
        (("Install",), "9"),
        (("Install", "On Linux"), "First this, then that."),
        (("Use",), "Use it."),
    ]
    assert [block.line for block in document.blocks][:4] == [10, 15, 15, 16]
    assert json.loads(document.metadata) == {
        "date": "2024-05-06",
        "folder": "",
        "format": "html",
        "language": "en-us",
        "url": "https://x.org/guide",
    }


def test_html_of_several_equal_headings_keeps_its_title(tmp_path: Path) -> None:
    page = "<title>News</title><h2>May</h2><p>A text.</p><h2>June</h2><p>Another.</p>"
    document = read(write(tmp_path / "n.html", page))
    assert document.title == "News" and sections(document) == [(("May",), "A text."), (("June",), "Another.")]


def test_html_that_is_all_menu_is_kept(tmp_path: Path) -> None:
    page = "<div class=menu><p>All that this page has to say stands in its menu.</p></div>"
    assert read(write(tmp_path / "m.html", page)).content.startswith("All that this page")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<meta charset=latin-1><p>déjà".encode("latin-1"), "déjà"),
        ("<p>déjà".encode("utf-16"), "déjà"),
        ("<p>“déjà”".encode("cp1252"), "“déjà”"),
        ("<?xml version='1.0' encoding='utf-8'?>\n<html><p>déjà".encode(), "déjà"),
    ],
)
def test_html_in_other_encodings(tmp_path: Path, content: bytes, text: str) -> None:
    assert read(write(tmp_path / "e.html", content)).content == text


def test_html_nested_absurdly_is_read(tmp_path: Path) -> None:
    page = "<div>" * 1_000 + "deep" + "</div>" * 1_000 + "<p>after"
    assert read(write(tmp_path / "d.html", page)).content == "deep\n\nafter"
    assert read(write(tmp_path / "e.html", page.replace("<div>", "<div>" * 99))).title == "e"


def test_markdown_with_front_matter(tmp_path: Path) -> None:
    document = read(write(tmp_path / "guide.md", MARKDOWN))
    assert document.title == "The guide"
    assert sections(document) == [
        ((), "It is boldly written."),
        (("Install",), "a hammer"),
        (("Install",), "a nail"),
        (("Install",), "# no heading\nmake"),
        (("Install",), "tool | price"),
        (("Install",), "saw | 9"),
        (("Install", "On Linux"), "First this."),
    ]
    lines = MARKDOWN.split("\n")
    for block in document.blocks:
        assert block.line is not None
        assert block.text.split()[-1].strip(".") in lines[block.line - 1 + block.text.count("\n")]
    known = json.loads(document.metadata)
    assert (known["date"], known["tags"], known["authors"]) == ("2024-05-06", ["a", "b"], ["Ann"])


def test_a_rule_is_no_front_matter(tmp_path: Path) -> None:
    document = read(write(tmp_path / "r.md", "---\nNo entry here\n\n---\nmore"))
    assert document.content.replace("\n", " ").split() == ["No", "entry", "here", "more"]


def test_restructured_text(tmp_path: Path) -> None:
    text = """.. A comment
   of two lines

=========
The guide
=========

.. toctree::
   :maxdepth: 1

   install

See :ref:`the index <genindex>` and `a page <http://x.y>`_ of :class:`Thing`.

Install
=======

.. _a-target:

.. note:: Mind this.
   And that.

On Linux
--------

.. code-block:: sh
   :linenos:

   make

Use
===
Use it::

    now
"""
    document = read(write(tmp_path / "g.rst", text))
    assert document.title == "The guide"
    assert sections(document) == [
        ((), "See the index and a page of Thing."),
        (("Install",), "Mind this.\n   And that."),
        (("Install", "On Linux"), "   make"),
        (("Use",), "Use it:"),
        (("Use",), "    now"),
    ]
    assert document.blocks[0].line == 13


def test_notebooks(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Study\n", "About."]},
        {"cell_type": "markdown", "source": "## Data"},
        {"cell_type": "code", "source": "# a comment\nload()", "outputs": [{"text": "secret"}]},
        {"cell_type": "raw", "source": "raw"},
        {"cell_type": "markdown", "source": "It is *large*."},
    ]
    document = read(write(tmp_path / "s.ipynb", json.dumps({"cells": cells, "nbformat": 4})))
    assert document.title == "Study"
    assert sections(document) == [
        ((), "About."),
        (("Data",), "# a comment\nload()"),
        (("Data",), "It is large."),
    ]


def test_mail_without_quotations_and_signatures(tmp_path: Path) -> None:
    text = "Grüße.\n\nOn Sunday, Bob wrote:\n> old\n> older\n\nYes.\n-- \nAnn\nphone"
    document = read(write(tmp_path / "m.eml", bytes(message("Re: größer", text, "<p>other"))))
    assert (document.title, document.content) == ("Re: größer", "Grüße.\n\nYes.")
    known = json.loads(document.metadata)
    assert (known["from"], known["date"]) == ("Ann <ann@x.org>", "2024-05-06")
    assert (
        read(write(tmp_path / "h.eml", bytes(message("s", "", "<p>Just <b>HTML</b>.")))).content
        == "Just HTML."
    )


def test_an_archive_of_mail_holds_many_documents(tmp_path: Path) -> None:
    box = mailbox.mbox(tmp_path / "list.mbox")
    for number in range(3):
        box.add(message(f"Number {number}", f"From here on, text {number}."))
    box.close()
    items = list(open_source(str(tmp_path), fields=FieldNames()).documents())
    assert [(d.id, d.title, d.content, d.file) for d in items if isinstance(d, Document)] == [
        (f"list.mbox#{n}", f"Number {n}", f"From here on, text {n}.", "list.mbox") for n in range(3)
    ]


def test_source_code_by_definitions(tmp_path: Path) -> None:
    code = '"""A module."""\n\nimport x\n\n\nclass A:\n    """Doc."""\n\n'
    code += "    @x.y\n    def go(self):\n        pass\n\n\nz = 1\n"
    document = read(write(tmp_path / "m.py", code))
    assert sections(document) == [
        ((), '"""A module."""\n\nimport x'),
        (("A",), 'class A:\n    """Doc."""'),
        (("A", "go"), "    @x.y\n    def go(self):\n        pass"),
        ((), "z = 1"),
    ]
    assert [block.line for block in document.blocks] == [1, 6, 9, 14]
    assert read(write(tmp_path / "b.py", "def broken(:\n")).content == "def broken(:"
    assert read(write(tmp_path / "a.go", "package a\n")).blocks[0].code
