"""Formats of documents: what is read of a file, what is left out, and under which headings it stands."""

from __future__ import annotations

import gzip
import json
import mailbox
import random
import resource
import zipfile
from email.message import EmailMessage
from pathlib import Path

import pytest
from tests.corpus import make

from qontext import api
from qontext.corpus.sources import FieldNames, Problem, open_source
from qontext.corpus.sources.formats import FORMATS
from qontext.data.records import Document
from qontext.frame.errors import QontextError

Section = tuple[tuple[str, ...], str]


def read(path: Path) -> Document:
    """The one document of a file that has no problems."""
    (document,) = open_source(str(path), fields=FieldNames()).documents()
    assert isinstance(document, Document), document
    return document


def sections(document: Document) -> list[Section]:
    return [(block.headings, block.text) for block in document.blocks]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


PAGE = """<!DOCTYPE html>
<html lang="EN-us"><head><title>Guide — The Site</title><meta name="date" content="2024-05-06">
<link rel="canonical" href="https://x.org/guide"><style>p {color: red}</style></head>
<body class="with-sidebar">
<div id="cookie-banner">We use cookies.</div>
<nav><ul><li><a href="/">Home</a></li></ul></nav>
<div class="sphinxsidebar">Quick search</div>
<div role="main">
<h1>The guide<a class="headerlink" href="#g">¶</a></h1>
<p>It is <b>bold</b>ly
written.<!-- not this --></p>
<ul class="toc"><li>Contents</li></ul>
<ul><li><a href="a">One</a></li><li><a href="b">Two</a></li><li><a href="c">Three</a></li></ul>
<h2>Install</h2>
<ul><li>a hammer</li><li>a <a href="n">nail</a></li></ul>
<pre>make
  all</pre>
<table><tr><th>tool</th><th>price</th></tr><tr><td><p>saw</p></td><td>9</td></tr></table>
<h3>On Linux</h3>First<br>this, <script>alert(1)</script>then that.
<h2>Use</h2><p>Use it.</p>
</div>
<footer>© The Site</footer></body></html>
"""


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


MARKDOWN = """---
title: "The guide"
date: 2024-05-06   # when
tags: [a, 'b']
authors:
  - Ann
---
<!-- a comment
of two lines -->
# Not the title

It is *bold*ly [written](http://x.y "t").

## Install

- a hammer
- a nail

```sh
# no heading
make
```

| tool | price |
|---|---|
| saw | 9 |

### On Linux
First this.
"""


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


def message(subject: str, text: str, html: str = "") -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = subject, "Ann <ann@x.org>", "bob@x.org"
    mail["Date"] = "Mon, 06 May 2024 10:00:00 +0200"
    if text:
        mail.set_content(text)
        if html:
            mail.add_alternative(html, subtype="html")
    else:
        mail.set_content(html, subtype="html")
    mail.add_attachment(b"\0\1", maintype="application", subtype="octet-stream", filename="x.bin")
    return mail


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


def test_docx_by_styles(tmp_path: Path) -> None:
    document = read(make.docx(tmp_path / "m.docx"))
    assert document.title == "The manual"
    assert sections(document) == [
        ((), "What this is about."),
        (("Install",), "First the parts."),
        (("Install",), "a hammer"),
        (("Install",), "a nail"),
        (("Install", "On Linux"), "tool | price"),
        (("Install", "On Linux"), "saw | 9"),
    ]
    assert json.loads(document.metadata)["author"] == "Ann"


def test_what_follows_a_table_of_contents_is_not_part_of_it(tmp_path: Path) -> None:
    links = "".join(f"<li><a href='#{n}'>Section {n}</a></li>" for n in range(4))
    page = (
        f"<h1>Guide</h1><h2>Table of contents</h2><ul>{links}</ul><h3>Install</h3><p>A hammer and a nail.</p>"
    )
    assert sections(read(write(tmp_path / "a.html", page))) == [(("Install",), "A hammer and a nail.")]


def test_epub_in_the_order_of_its_spine(tmp_path: Path) -> None:
    chapters = {"z": "<h1>One</h1><p>First.</p><h2>Part</h2><p>More.</p>", "a": "<h1>Two</h1><p>Last.</p>"}
    document = read(make.epub(tmp_path / "b.epub", chapters))
    assert document.title == "A book"
    assert sections(document) == [(("One",), "First."), (("One", "Part"), "More."), (("Two",), "Last.")]
    known = json.loads(document.metadata)
    assert (known["author"], known["date"]) == ("Bob", "2020-02-03")


def test_pdf_by_pages_and_outline(tmp_path: Path) -> None:
    pages = [
        ["The running head", "What this is about, in some words.", "1"],
        ["The running head", "Install", "First the parts are put to-", "gether with a hammer.", "2"],
        ["The running head", "and with a nail.", "3"],
        ["The running head", "Use", "It is used like this.", "4"],
    ]
    document = read(make.pdf(tmp_path / "r.pdf", pages, outline={1: "Install", 3: "Use"}))
    assert document.title == "The report" and json.loads(document.metadata)["author"] == "Eve"
    assert [(block.page, *section) for block, section in zip(document.blocks, sections(document))] == [
        (1, (), "What this is about, in some words."),
        (2, ("Install",), "First the parts are put together with a hammer."),
        (3, ("Install",), "and with a nail."),
        (4, ("Use",), "It is used like this."),
    ]


def bomb(path: Path, name: str, size: int) -> None:
    """An archive with one file that unpacks to `size` bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("META-INF/container.xml", make.CONTAINER)
        with archive.open(name, "w", force_zip64=True) as file:
            for _ in range(size >> 20):
                file.write(b" " * (1 << 20))


def laughs() -> str:
    """XML whose entities expand to a gigabyte."""
    lines = ['<!ENTITY a0 "ha">', *(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))]
    return f"<!DOCTYPE x [{''.join(lines)}]><x>&a9;</x>"


def test_compressed_documents(tmp_path: Path) -> None:
    pdf = make.pdf(tmp_path / "r.pdf", [["Some words about the mill."] * 9])
    book = make.epub(tmp_path / "b.epub", {"a": "<h1>One</h1><p>First.</p>"})
    mail = write(tmp_path / "m.mbox", "From a@b\nSubject: The mill\n\nIt grinds flour.\n")
    for file in (pdf, book, mail):
        packed = write(tmp_path / f"{file.name}.gz", gzip.compress(file.read_bytes()))
        assert read(packed).blocks == read(file).blocks


def test_a_readme_is_titled_by_its_folder(tmp_path: Path) -> None:
    expected = {"README": "README", "zlib/README": "zlib README", "zlib/guide.txt": "guide"}
    for name in expected:
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / "docs" / name, b"Words.")
    items = open_source(str(tmp_path / "docs"), fields=FieldNames()).documents()
    assert {d.id: d.title for d in items if isinstance(d, Document)} == expected


def unreadable(folder: Path) -> dict[str, str]:
    """Files that cannot be read, and for each what is said of it."""
    make.pdf(folder / "scan.pdf", [[], []])
    make.pdf(folder / "secret.pdf", [["words"]], password="x")
    whole = make.pdf(folder / "cut.pdf", [["words"] * 9]).read_bytes()
    write(folder / "cut.pdf", b"garbage" + whole[200:400])
    write(folder / "empty.pdf", b"")
    write(folder / "no.docx", b"no archive")
    write(folder / "locked.docx", b"\xd0\xcf\x11\xe0" + bytes(600))
    bomb(folder / "bomb.docx", "word/document.xml", 64 << 20)
    bomb(folder / "bomb.epub", "OEBPS/book.opf", 64 << 20)
    with zipfile.ZipFile(folder / "laughs.docx", "w") as archive:
        archive.writestr("word/document.xml", laughs())
    with zipfile.ZipFile(folder / "empty.epub", "w") as archive:
        archive.writestr("x", "x")
    write(folder / "no.ipynb", b'{"cells": 3}')
    write(folder / "minified.js", b"x=1;" * 9999)
    write(folder / "no.mbox", b"no mail")
    with (folder / "gigabyte.pdf").open("wb") as file:
        file.truncate(1 << 30)
    return {
        "scan.pdf": "no text layer",
        "secret.pdf": "encrypted",
        "cut.pdf": "damaged document",
        "empty.pdf": "damaged document",
        "no.docx": "damaged document",
        "locked.docx": "encrypted",
        "bomb.docx": "too large",
        "bomb.epub": "too large",
        "laughs.docx": "damaged document",
        "empty.epub": "damaged document",
        "no.ipynb": "damaged document",
        "minified.js": "generated code",
        "no.mbox": "damaged document",
        "gigabyte.pdf": "too large",
    }


def test_what_cannot_be_read_is_a_problem_of_its_kind_in_bounded_memory(tmp_path: Path) -> None:
    expected = unreadable(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    items = list(open_source(str(tmp_path), fields=FieldNames()).documents())
    assert {Path(p.place).name: p.kind for p in items if isinstance(p, Problem)} == expected
    assert [d for d in items if isinstance(d, Document) and d.content.strip()] == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_unreadable_documents_are_left_out_with_a_sentence_each_and_never_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    expected = unreadable(tmp_path / "docs")
    write(tmp_path / "docs" / "good.txt", "Some text.")
    for name in ("empty.html", "empty.txt", "frame.html"):
        write(tmp_path / "docs" / name, "<nav>Home</nav>" if name == "frame.html" else "")
        expected[name] = "no text"
    summary = api.split(tmp_path / "docs", out=tmp_path / "out").summary
    assert summary["documents"] == 1 and sum(summary["skipped"].values()) == len(expected)
    messages = capsys.readouterr().err
    assert all(f"docs/{name}" in messages for name in expected)
    assert "needs text recognition (OCR)" in messages and "save a copy without a password" in messages


def test_files_of_formats_that_are_not_installed_are_counted_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(FORMATS, "pdf", FORMATS["pdf"]._replace(package="no_such_package"))
    for name in ("a.pdf", "b.pdf", "c.png", "d.txt"):
        write(tmp_path / name, b"Some text.")
    passages = api.split(tmp_path, out=tmp_path.with_name(f"{tmp_path.name}-out"))
    assert passages.summary["not_read"] == {".pdf": 2, ".png": 1}
    messages = capsys.readouterr().err
    assert "3 files are not read (2 .pdf, 1 .png); for .pdf: pip install 'qontext[docs]'" in messages
    with pytest.raises(QontextError, match=r"pip install 'qontext\[docs\]'"):
        open_source(str(tmp_path / "a.pdf"), fields=FieldNames())


def mutated(content: bytes, dice: random.Random) -> bytes:
    """The content with some bytes changed, taken out, repeated or put in."""
    changed = bytearray(content)
    for _ in range(dice.choice((1, 3, 20))):
        at = dice.randrange(len(changed) + 1)
        upto = min(len(changed), at + dice.randrange(100))
        piece = dice.choice(
            [b"", bytes(changed[at:upto]) * 2, b"\0", b"\xff", b"<", b"&#0;", b"=?x?q?=ff?=", b"\\ud800"]
        )
        changed[at:upto] = piece
    return bytes(changed)


def test_damaged_documents_are_read_in_part_or_are_problems(tmp_path: Path) -> None:
    """Whatever a file holds, nothing but documents that can be written and problems comes out of it."""
    make.docx(tmp_path / "m.docx")
    make.epub(tmp_path / "b.epub", {"z": "<h1>One</h1><p>First.</p>"})
    make.pdf(tmp_path / "r.pdf", [["Some words on a page."]] * 2, outline={1: "Some"})
    write(tmp_path / "g.html", PAGE)
    write(tmp_path / "g.md", MARKDOWN)
    write(tmp_path / "m.eml", bytes(message("Re: größer", "Text.\n> old", "<p>other")))
    write(
        tmp_path / "b.mbox", b"From x\n" + bytes(message("s", "Text.")) + b"\n\nFrom y\nSubject: t\n\nMore."
    )
    write(tmp_path / "n.ipynb", json.dumps({"cells": [{"cell_type": "markdown", "source": ["# a\n", "b"]}]}))
    dice = random.Random(0)
    originals = {path: path.read_bytes() for path in sorted(tmp_path.iterdir())}
    for path, content in originals.items():
        for _ in range(60):
            write(path, mutated(content, dice))
            for item in open_source(str(path), fields=FieldNames()).documents():
                assert isinstance(item, Document | Problem)
                if isinstance(item, Document):
                    text = "".join([item.id, item.title, item.content, item.metadata])
                    assert "\0" not in text and text.encode()


def test_a_mixed_folder_has_the_same_documents_in_any_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(40):
        write(tmp_path / f"{n:02}.html", f"<h1>T{n}</h1><p>Text {n}.")
    write(tmp_path / "05.md.gz", gzip.compress(b"# M\n\nMarkdown."))
    make.docx(tmp_path / "06.docx")
    (tmp_path / "_static").mkdir()
    write(tmp_path / "_static" / "x.js", "var x")

    def documents() -> list[Document | Problem]:
        source = open_source(str(tmp_path), fields=FieldNames())
        items = list(source.documents())
        assert source.bytes_read == source.bytes_total
        return items

    alone = documents()
    assert [d.id for d in alone if isinstance(d, Document)] == sorted(
        p.name for p in tmp_path.iterdir() if p.is_file()
    )
    monkeypatch.setattr("qontext.corpus.sources.files._SMALL", 0)
    monkeypatch.setattr("qontext.corpus.parallel.cores", lambda: 3)
    assert documents() == alone
