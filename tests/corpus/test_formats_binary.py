"""Office files, books, PDF and compressed files: what is read of them, and under which headings it stands."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.corpus import make
from tests.corpus.reading import read, sections, write

from qontext.corpus.sources import FieldNames, open_source
from qontext.corpus.sources.formats.pdf import _without_repeated
from qontext.data.records import Document


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
    assert {block.line for block in document.blocks} == {None}


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
    assert (known["author"], known["date"][:10]) == ("Bob", "2020-02-03")


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


def test_pdf_of_slides_that_look_alike_is_no_scan(tmp_path: Path) -> None:
    slides = [[f"Question {n}", "A. Yes, I do", "B. No, I do not"] for n in range(1, 7)]
    document = read(make.pdf(tmp_path / "s.pdf", slides))
    assert [block.text for block in document.blocks] == ["\n".join(slide) for slide in slides]


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


def test_pdf_without_outline_has_the_headings_of_its_large_lines(tmp_path: Path) -> None:
    pages = [
        [
            "# A long name",
            "# of a part",
            "First the parts are",
            "put together",
            "with a hammer.",
            "Then it is done.",
            "Well.",
        ],
        [
            "and with a nail.",
            "# Use",
            "It is used like this.",
            "Or else like this.",
            "Or so.",
            "Often.",
            "Or not.",
        ],
    ]
    document = read(make.pdf(tmp_path / "r.pdf", pages))
    assert [(block.page, *section) for block, section in zip(document.blocks, sections(document))] == [
        (
            1,
            ("A long name of a part",),
            "First the parts are\nput together\nwith a hammer.\nThen it is done.\nWell.",
        ),
        (2, ("A long name of a part",), "and with a nail."),
        (2, ("Use",), "It is used like this.\nOr else like this.\nOr so.\nOften.\nOr not."),
    ]
    alike = [[f"# Line {n}" for n in range(9)], [f"Small {n}" for n in range(9)]]
    assert {headings for headings, _ in sections(read(make.pdf(tmp_path / "s.pdf", alike)))} == {()}


def pages(*lines: str, count: int = 6, first: int = 1) -> list[list[str]]:
    """Pages with a text and these lines around it, in which {} is the page's number."""
    numbers = range(first, first + count)
    return [
        [
            lines[0].format(n),
            f"The text {n**2 % 37} of a page.",
            "And more" * (n - first),
            *(line.format(n) for line in lines[1:]),
        ]
        for n in numbers
    ]


def edges(made: list[list[str]]) -> set[str]:
    """What is left beside the text of pages."""
    return {
        line
        for page in _without_repeated(made)
        for line in page
        if line and "And more" not in line and "The text" not in line
    }


@pytest.mark.parametrize("head", ["Handbook {}", "Introduction. {}", "Leitfaden {}"])
@pytest.mark.parametrize(("count", "first"), [(4, 1), (6, 12)])
def test_pdf_without_heads_of_a_word_and_the_number(
    tmp_path: Path, head: str, count: int, first: int
) -> None:
    made = pages(head, count=count, first=first)
    blocks = read(make.pdf(tmp_path / "p.pdf", made)).blocks
    assert len(blocks) == count and not any(head.split()[0] in block.text for block in blocks)


@pytest.mark.parametrize(
    "foot", ["Pagina {} van 5", "Стр. {} из 5", "Leht {}", "صفحة {} من 5", "{}", "- {} -"]
)
def test_pdf_without_page_numbers_in_many_languages(foot: str) -> None:
    assert edges(pages(foot, count=5)) == edges(pages("The mill", foot, count=5)) == set()


@pytest.mark.parametrize(
    ("made", "label"),
    [
        (pages("Question {}", count=9), "Question"),
        (pages("Chapter {}", count=9, first=3), "Chapter"),
        (pages("Kysymys {}", count=3), "Kysymys"),
        (pages("Umsatz {}", count=9, first=2015), "Umsatz"),
        ([page for n in range(1, 9) for page in pages("Kysymys {}", count=1, first=2 * n)], "Kysymys"),
    ],
)
def test_pdf_keeps_labels_whose_number_is_not_the_pages(made: list[list[str]], label: str) -> None:
    assert edges(made) == {line for page in made for line in page if line.startswith(label)}
