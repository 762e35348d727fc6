"""Files that cannot be read, or only in part, among others that can."""

from __future__ import annotations

import gzip
import json
import random
import zipfile
from pathlib import Path

import pytest
from tests.corpus import make
from tests.corpus.reading import MARKDOWN, PAGE, message, write

from qontext import api
from qontext.corpus.sources import FieldNames, Problem, open_source
from qontext.corpus.sources.formats import FORMATS
from qontext.data.records import Document
from qontext.frame.errors import QontextError


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


def unreadable(folder: Path) -> dict[str, str]:
    """Files that cannot be read, and for each what is said of it."""
    make.pdf(folder / "scan.pdf", [[], []])
    make.pdf(folder / "secret.pdf", [["words"]], password="x")
    whole = make.pdf(folder / "cut.pdf", [["words"] * 9]).read_bytes()
    write(folder / "cut.pdf", b"garbage" + whole[200:400])
    write(folder / "empty.pdf", b"")
    write(folder / "no.docx", b"no archive")
    bomb(folder / "bomb.docx", "word/document.xml", 64 << 20)
    bomb(folder / "bomb.epub", "OEBPS/book.opf", 64 << 20)
    with zipfile.ZipFile(folder / "laughs.docx", "w") as archive:
        archive.writestr("word/document.xml", laughs())
    with zipfile.ZipFile(folder / "empty.epub", "w") as archive:
        archive.writestr("x", "x")
    write(folder / "no.ipynb", b'{"cells": 3}')
    write(folder / "minified.js", b"x=1;" * 9999)
    parts = "".join(f"Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n" for n in range(1_200))
    write(folder / "deep.eml", f"{parts}Content-Type: text/plain\n\nText.\n")
    return {
        "scan.pdf": "no text layer",
        "secret.pdf": "encrypted",
        "cut.pdf": "damaged document",
        "empty.pdf": "damaged document",
        "no.docx": "damaged document",
        "bomb.docx": "damaged document",
        "bomb.epub": "damaged document",
        "laughs.docx": "damaged document",
        "empty.epub": "damaged document",
        "no.ipynb": "damaged document",
        "minified.js": "generated code",
        "deep.eml": "damaged document",
    }


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
    for name in ("a.pdf", "b.pdf", "b.pdf.gz", "c.png", "d.txt"):
        write(tmp_path / name, b"Some text.")
    passages = api.split(tmp_path, out=tmp_path.with_name(f"{tmp_path.name}-out"))
    assert passages.summary["not_read"] == {".pdf": 2, ".pdf.gz": 1, ".png": 1}
    messages = capsys.readouterr().err
    assert (
        "4 files (2 .pdf, 1 .pdf.gz, 1 .png) not read; for .pdf, .pdf.gz: pip install 'qontext[docs]'"
        in messages
    )
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
