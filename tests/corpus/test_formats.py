"""Formats of text: what is read of a file, what is left out, and under which headings it stands."""

from __future__ import annotations

import json
import mailbox
import re
from email.message import EmailMessage
from pathlib import Path

import pytest
from tests.corpus.reading import MARKDOWN, PAGE, message, read, sections, write

from qontext.corpus.sources import FieldNames, open_source
from qontext.corpus.sources.formats import decode
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
        "author": "Ada",
        "date": "2024-05-06",
        "folder": "",
        "format": "html",
        "lang": "en-us",
        "tags": ["tools", "wood work"],
        "url": "https://x.org/guide",
    }


def test_html_sections_whose_ids_are_made_from_their_headings_are_kept(tmp_path: Path) -> None:
    names = ("cookies", "related-work", "navigation")
    page = "".join(f"<section id={name}><h2>{name}</h2><p>About {name}.</p></section>" for name in names)
    page += (
        "<div class=section id=menu><h2>menu</h2><p>About menus.</p></div><dl><dt id=opt-share>--share</dl>"
    )
    page += "<div id=sidebar><h3>Recent</h3><p>News.</p></div>"
    assert sections(read(write(tmp_path / "s.html", page))) == [
        *(((name,), f"About {name}.") for name in names),
        (("menu",), "About menus."),
        (("menu",), "--share"),
    ]


def test_html_in_a_form_is_read_without_its_controls(tmp_path: Path) -> None:
    page = "<form id=aspnetForm><h1>The mill</h1><p>It grinds.</p><select><option>a</select></form>"
    assert sections(read(write(tmp_path / "f.html", page))) == [((), "It grinds.")]
    form = "<form><label>Name</label><input value=x><button>Send</button></form>"
    page = f"<h1>The mill</h1><p>It grinds flour for the village.</p>{form}"
    assert sections(read(write(tmp_path / "g.html", page))) == [((), "It grinds flour for the village.")]
    assert read(write(tmp_path / "h.html", "<form><p>All is here.</p></form>")).content == "All is here."


FAQ: list[tuple[tuple[str, ...], str]] = [
    ((), "In short."),
    ((), "What is it?"),
    (("Use",), "How to begin"),
    (("Use", "How to end"), "Stop."),
    ((), "Trailing"),
]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("f.md", "In short.\n\n# What is it?\n# Use\n## How to begin\n## How to end\nStop.\n# Trailing\n"),
        (
            "f.html",
            "In short.<h1>What is it?</h1><h1>Use</h1><h2>How to begin</h2><h2>How to end</h2>Stop.<h1>Trailing",
        ),
        (
            "f.rst",
            "In short.\n\nWhat is it?\n===========\n\nUse\n===\n\nHow to begin\n------------\n\n"
            "How to end\n----------\n\nStop.\n\nTrailing\n========\n",
        ),
    ],
)
def test_headings_without_text_are_blocks(tmp_path: Path, name: str, text: str) -> None:
    document = read(write(tmp_path / name, text))
    assert sections(document) == FAQ
    if not name.endswith("html"):
        lines = text.split("\n")
        assert all(block.line and lines[block.line - 1].endswith(block.text) for block in document.blocks)


def test_headings_of_what_is_left_out_are_no_blocks(tmp_path: Path) -> None:
    links = "".join(f"<li><a href='{n}'>Page {n}</a></li>" for n in range(4))
    page = f"<h2>Use</h2><p>Use it like this, then stop.</p><h2>Related pages</h2><ul>{links}</ul>"
    assert sections(read(write(tmp_path / "a.html", page))) == [((), "Use it like this, then stop.")]
    menu = "".join(f"<a href='{n}'>Page {n}</a> " for n in range(4))
    page = f"<h2>{menu}</h2><h2>Use</h2><p>Use it like this, then stop.</p>"
    assert sections(read(write(tmp_path / "b.html", page))) == [((), "Use it like this, then stop.")]
    text = "Use\n===\n\nLike this.\n\nContents\n========\n\n.. toctree::\n\n   a\n"
    assert sections(read(write(tmp_path / "a.rst", text))) == [(("Use",), "Like this.")]


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
        {"cell_type": "markdown", "source": None},
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


def test_mail_in_html_without_quotations_and_signatures(tmp_path: Path) -> None:
    html = "<p>Yes, on Friday.</p><div class=gmail_signature>Ann</div>"
    html += "<div class='gmail_quote x'>On Sunday, Bob wrote:<blockquote>When?</blockquote></div><p>See you."
    for number, text in enumerate(("", " \n\n")):
        document = read(write(tmp_path / f"{number}.eml", bytes(message("s", text, html))))
        assert document.content == "Yes, on Friday.\n\nSee you."
    forwarded = bytes(message("s", "", "<div class=gmail_quote>The offer.</div>"))
    assert read(write(tmp_path / "f.eml", forwarded)).content == "The offer."


def test_an_archive_of_mail_holds_many_documents(tmp_path: Path) -> None:
    box = mailbox.mbox(tmp_path / "list.mbox")
    for number in range(3):
        box.add(message(f"Number {number}", f"From here on, text {number}."))
    box.close()
    path = tmp_path / "list.mbox"
    path.write_bytes(b"\n" + path.read_bytes())
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


@pytest.mark.parametrize(
    ("text", "title", "expected"),
    [
        (
            "---\n# Slide 1\n\nFirst slide text\n\n---\n# Slide 2\n\nMore.",
            "Slide 1",
            [(("Slide 1",), "First slide text"), (("Slide 2",), "More.")],
        ),
        (
            "---\nNote: this page is a draft.\n\nAll of this first section.\n\n---\nMore.",
            "p",
            [((), "Note: this page is a draft."), ((), "All of this first section."), ((), "More.")],
        ),
        (
            '---\ntitle: "Long title\ncontinues here"\n---\nText.',
            "Long title continues here",
            [((), "Text.")],
        ),
        ("# ![logo](logo.png)\n\n## Install\n\nRun it.", "p", [(("Install",), "Run it.")]),
        ("#\n\n## Install\n\nRun it.", "p", [(("Install",), "Run it.")]),
        ("<div>a &amp; b</div>", "p", [((), "a & b")]),
    ],
)
def test_markdown_keeps_its_text_and_headings(
    tmp_path: Path, text: str, title: str, expected: list[tuple[tuple[str, ...], str]]
) -> None:
    document = read(write(tmp_path / "p.md", text))
    assert (document.title, sections(document)) == (title, expected)


def test_mail_of_several_texts(tmp_path: Path) -> None:
    mail = EmailMessage()
    mail.set_content("Before.\n--\nNo signature.\n-- \nNor this.\n-- \nAnn")
    mail.make_mixed()
    for text, kind in (("<p>Middle.", "html"), ("After.", "plain")):
        mail.attach(EmailMessage())
        mail.get_payload()[-1].set_content(text, subtype=kind, disposition="inline")
    mail.add_attachment("Not this.", filename="a.txt")
    mail.add_attachment(message("The offer", "Take it.", "<p>other"))
    document = read(write(tmp_path / "note.eml", bytes(mail)))
    assert document.title == "note"
    assert sections(document) == [
        ((), "Before.\n--\nNo signature.\n-- \nNor this."),
        ((), "Middle."),
        ((), "After."),
        (("The offer",), "Take it."),
    ]


def test_restructured_text_of_directives_with_content(tmp_path: Path) -> None:
    text = """.. only:: html

   Only here.

.. figure:: mill.png
   :alt: not this

   A mill.

..

   A quotation.

.. _target:

   Another.

.. A comment

   of two parts.

..
   A comment.
"""
    assert [text.strip() for _, text in sections(read(write(tmp_path / "g.rst", text)))] == [
        "Only here.",
        "A mill.",
        "A quotation.",
        "Another.",
    ]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (",Berlin,Germany\nBob,Paris,France\n", ["Berlin; Germany", "Bob; Paris; France"]),
        (",Berlin,Germany\n", ["Berlin; Germany"]),
        (
            "\n,name,from\n\n0,Ada,London\n1,Bob,Paris\n",
            ["0; name: Ada; from: London", "1; name: Bob; from: Paris"],
        ),
        (",open\n2020-01-02,low\n", ["2020-01-02; open: low"]),
        ("name,from\nAda,London\n", ["name: Ada; from: London"]),
        (",price,size\ncount,10,12\n", ["count; price: 10; size: 12"]),
        (",price\n2024-01-01T00:00:00+00:00,low\n", ["2024-01-01T00:00:00+00:00; price: low"]),
        (",price\nQ1,-.5\n", ["Q1; price: -.5"]),
    ],
)
def test_csv_whose_first_cell_is_empty(tmp_path: Path, content: str, texts: list[str]) -> None:
    assert [block.text for block in read(write(tmp_path / "t.csv", content)).blocks] == texts


GERMAN = "Die Größe der Maße ändert sich, müßig über Bäume" * 3

CHINESE, JAPANESE, RUSSIAN = "磨坊主把小麦磨成面粉。" * 4, "水車小屋で小麦を粉にする。" * 4, "Мельница"


@pytest.mark.parametrize(
    ("content", "declared", "text"),
    [
        *((GERMAN.encode("cp1252"), name, GERMAN) for name in ("gbk", "shift_jis", "utf-8", "utf-16")),
        (CHINESE.encode("gbk") + b"\xff", "gbk", f"{CHINESE}\ufffd"),
        (JAPANESE.encode("shift_jis") + b"\x80", "shift_jis", f"{JAPANESE}\x80"),
        ("①設定を開く".encode("cp932"), "shift_jis", "①設定を開く"),
        (RUSSIAN.encode("cp1251") + b"\x98", "windows-1251", f"{RUSSIAN}\ufffd"),
        (RUSSIAN.encode() + b"\xff", "utf-8", f"{RUSSIAN}\ufffd"),
    ],
)  # fmt: skip
def test_a_declared_encoding_holds_if_most_is_valid(content: bytes, declared: str, text: str) -> None:
    assert decode(content, declared, "utf-8") == text


@pytest.mark.parametrize(
    "element",
    [
        "<a class=skip-main href='#m'>Skip</a>",
        "<address class=footer>The mill</address>",
        "<p class=nav-links>Home, docs</p>",
        "<div id=breadcrumbs>Home > Docs</div>",
    ],
)
def test_boilerplate_of_html_beside_the_text(tmp_path: Path, element: str) -> None:
    page = f"<h1>The mill<span class=headerlink>link</span></h1>{element}<p>It grinds flour.</p>"
    document = read(write(tmp_path / "a.html", page))
    assert document.title == "The mill"
    assert document.content == "It grinds flour."


@pytest.mark.parametrize(
    "text",
    [
        "Set the <span class=cookie>session</span> cookie.",
        "Press <a class=skip href='/s'>Skip</a> to go on.",
        "Open <label class=menu>File</label> and <span class=share>Share</span>.",
        "Click <a class=nav-link href=x>Settings</a> to go on.",
        "The <span class=footer>footer</span> of a page.",
    ],
)
def test_phrases_of_html_are_read_whatever_their_names(tmp_path: Path, text: str) -> None:
    page = f"<h2><a id=skip-links href='#skip-links'>Skip links</a></h2><p id=cookies>{text}</p><h2>Use</h2><p>So.</p>"
    expected = [(("Skip links",), re.sub("<[^>]*>", "", text)), (("Use",), "So.")]
    assert sections(read(write(tmp_path / "a.html", page))) == expected


@pytest.mark.parametrize(
    "first",
    [
        "# The mill\n",
        "# The mill",
        "It grinds.",
        "  It grinds: flour,\n\n  and more",
        "- a: b",
    ],
)
def test_what_stands_between_rules_is_text(tmp_path: Path, first: str) -> None:
    words = first.replace("\n", " ").strip("#- ").split()
    document = read(write(tmp_path / "p.md", f"---\n{first}\n---\n\nText."))
    assert set(words) <= set(f"{document.content} {document.title} {document.blocks[0].headings}".split())
