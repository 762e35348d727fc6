"""Details of formats that decide if a text is read once, in full, and without what is no text."""

from __future__ import annotations

import base64
import json
import re
from email.message import EmailMessage
from pathlib import Path

import pytest
from tests.corpus import make
from tests.corpus.reading import message, read, sections, write

from qontext.corpus.sources.formats.base import decode
from qontext.corpus.sources.formats.pdf import _without_repeated

HEAD = "Subject: The mill\nMIME-Version: 1.0\nContent-Type: "
ROOT = "--b\nContent-Type: text/html\nContent-ID: <root@x>\n\n<p>The body.</p>\n"
STYLE = "--b\nContent-Type: text/html\nContent-ID: <other>\n\n<p>Not this.</p>\n"
IMAGE = "--b\nContent-Type: image/png\nContent-ID: <i>\nContent-Transfer-Encoding: base64\n\niVBORw==\n"


@pytest.mark.parametrize(
    ("start", "parts"),
    [
        ("", (ROOT, IMAGE, STYLE)),
        ("", (IMAGE, ROOT)),
        ('; start="<root@x>"', (IMAGE, STYLE, ROOT)),
        ('; start="root@x"', (STYLE, ROOT)),
        ('; start="<i>"', (IMAGE, ROOT)),
        ('; start="<none>"', (IMAGE, ROOT, STYLE)),
    ],
)
def test_mail_has_the_root_of_related_parts(tmp_path: Path, start: str, parts: tuple[str, ...]) -> None:
    text = f"{HEAD}multipart/related; boundary=b{start}\n\n{''.join(parts)}--b--\n"
    assert read(write(tmp_path / "m.eml", text)).content == "The body."


def mixed(*parts: tuple[str, str, str]) -> bytes:
    """A mail of parts with these types, dispositions and texts."""
    mail = EmailMessage()
    mail["Subject"] = "The mill"
    mail.make_mixed()
    for kind, disposition, text in parts:
        part = EmailMessage()
        part.set_content(text, subtype=kind, disposition=disposition or None)
        mail.attach(part)
    return bytes(mail)


LIST = f"{'_' * 47}\nMills mailing list\nhttps://x.org/mills\n"


@pytest.mark.parametrize(
    ("parts", "texts"),
    [
        (
            (("plain", "", "It grinds\nflour."), ("html", "", "<p>It grinds <b>flour</b>.")),
            ["It grinds\nflour."],
        ),
        (
            (("html", "", "<p>It grinds."), ("plain", "", "It grinds."), ("plain", "", "Yes.")),
            ["It grinds.", "Yes."],
        ),
        ((("plain", "", "Yes."), ("plain", "inline", LIST)), ["Yes."]),
        (
            (("plain", "", "Yes."), ("plain", "inline", LIST), ("plain", "", "No.")),
            ["Yes.", LIST.strip(), "No."],
        ),
        ((("plain", "", "Yes."), ("plain", "inline", LIST * 20)), ["Yes.", (LIST * 20).strip()]),
        ((("plain", "inline", LIST),), [LIST.strip()]),
    ],
)
def test_mail_of_parts_side_by_side(
    tmp_path: Path, parts: tuple[tuple[str, str, str], ...], texts: list[str]
) -> None:
    assert [block.text for block in read(write(tmp_path / "m.eml", mixed(*parts))).blocks] == texts


@pytest.mark.parametrize("content", [bytes(message("The offer", "Take it.")), b"\xff no message"])
def test_forwarded_mail_may_be_encoded(tmp_path: Path, content: bytes) -> None:
    own = "--b\nContent-Type: text/plain\n\nSee this.\n"
    sent = "--b\nContent-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\n"
    sent += base64.encodebytes(content).decode()
    text = f"{HEAD}multipart/mixed; boundary=b\n\n{own}{sent}--b--\n"
    expected = (("The offer",), "Take it.") if b"offer" in content else ((), "ÿ no message")
    assert sections(read(write(tmp_path / "m.eml", text))) == [((), "See this."), expected]
    damaged = text.replace(sent, sent[: sent.index("\n\n") + 2] + "AAAAA\n")
    assert sections(read(write(tmp_path / "d.eml", damaged)))[0] == ((), "See this.")


def run(text: str) -> str:
    return f"<m:r><m:t>{text}</m:t></m:r>"


def formula(*parts: str) -> str:
    return f"<m:oMath>{''.join(parts)}</m:oMath>"


def matrix(*rows: str) -> str:
    made = "".join(f"<m:mr>{''.join(f'<m:e>{run(cell)}</m:e>' for cell in row)}</m:mr>" for row in rows)
    return f"<m:m>{made}</m:m>"


def operator(properties: str) -> str:
    sub, sup = (f"<m:{name}>{run(text)}</m:{name}>" for name, text in (("sub", "i"), ("sup", "n")))
    return f"<m:nary><m:naryPr>{properties}</m:naryPr>{sub}{sup}<m:e>{run('x')}</m:e></m:nary>"


WORD = "<w:r><w:t>So </w:t></w:r>"
SUM, DELETED = "<m:chr m:val='∑'/>", f"<m:sup><w:del>{run('2')}</w:del></m:sup>"


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        (f"<w:p>{WORD}<w:del>{formula(run('a'))}</w:del>{formula(run('b'))}</w:p>", ["So b"]),
        (f"<w:p>{WORD}<w:moveFrom>{formula(run('a'))}</w:moveFrom></w:p>", ["So"]),
        (f"<w:p>{WORD}{formula(run('a'), DELETED)}</w:p>", ["So a"]),
        (
            "<w:p><w:pPr><w:rPr><w:del w:id='1'/></w:rPr></w:pPr><w:ins><w:r><w:rPr><w:del w:id='2'/></w:rPr>"
            "<w:t>Kept.</w:t></w:r></w:ins><w:del><w:r><w:tab/><w:delText>Not.</w:delText></w:r></w:del></w:p>",
            ["Kept."],
        ),
        (f"<m:oMathPara>{formula(run('a=b'))}{formula(run('c=d'))}</m:oMathPara>", ["a=b c=d"]),
        (f"<w:p>{formula(run('A='), matrix('123', '456'))}</w:p>", ["A=1 2 3 4 5 6"]),
        (f"<w:p>{formula(operator(SUM), run('+1'))}</w:p>", ["∑_i^n x+1"]),
        (f"<w:p>{formula(operator(''))}</w:p>", ["∫_i^n x"]),
        (
            f"<mc:AlternateContent><?a b?><mc:Choice><w:p>{WORD}</w:p></mc:Choice><mc:Fallback><w:p>{WORD}</w:p>"
            "</mc:Fallback></mc:AlternateContent><w:p><mc:AlternateContent><?a b?><mc:Choice><w:r><w:t>on<?c?>e"
            "</w:t></w:r></mc:Choice></mc:AlternateContent></w:p>",
            ["So", "one"],
        ),
    ],
)
def test_docx_of_formulas_and_tracked_changes(tmp_path: Path, body: str, texts: list[str]) -> None:
    assert [block.text for block in read(make.docx_of(tmp_path / "m.docx", body)).blocks] == texts


@pytest.mark.parametrize(
    ("front", "metadata"),
    [
        ("tags:\n- python\n- note: important\n- rust", {"tags": ["python", "note: important", "rust"]}),
        (
            "lang: en\nauthors:\n- name: A\n  url: b\n- name: C",
            {"lang": "en", "authors": ["name: A", "name: C"]},
        ),
        (
            "  lang: x\n  tags:\n    - a\n\n  note: >\n    one\n    two",
            {"lang": "x", "tags": ["a"], "note": "one two"},
        ),
        ("# about\n  lang: x", {"lang": "x"}),
        ("# only a comment: x", {}),
        ("# only\n# comments", {}),
    ],
)
def test_front_matter_of_other_programs(tmp_path: Path, front: str, metadata: dict[str, object]) -> None:
    document = read(write(tmp_path / "p.md", f"---\n{front}\n---\nText."))
    assert [(block.text, block.line) for block in document.blocks] == [("Text.", front.count("\n") + 4)]
    assert json.loads(document.metadata) == {"folder": "", "format": "markdown", **metadata}
    assert document.title == "p"


@pytest.mark.parametrize(
    "first",
    [
        "# The mill\n",
        "# The mill",
        "It grinds.",
        "  It grinds: flour,\n\n  and more",
        "- a: b",
        "    key: value",
    ],
)
def test_what_stands_between_rules_is_text(tmp_path: Path, first: str) -> None:
    words = first.replace("\n", " ").strip("#- ").split()
    document = read(write(tmp_path / "p.md", f"---\n{first}\n---\n\nText."))
    assert set(words) <= set(f"{document.content} {document.title} {document.blocks[0].headings}".split())


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
@pytest.mark.parametrize(("count", "first"), [(4, 1), (6, 12), (40, 5)])
def test_pdf_without_heads_of_a_word_and_the_number(
    tmp_path: Path, head: str, count: int, first: int
) -> None:
    made = pages(head, count=count, first=first)
    blocks = read(make.pdf(tmp_path / "p.pdf", made)).blocks
    assert len(blocks) == count and not any(head.split()[0] in block.text for block in blocks)
    chapter = [*pages("The mill", count=9), *made, *pages("The boat", count=9)]
    assert {line for line in edges(chapter) if head.split()[0] in line} == set(), "one of a chapter"


@pytest.mark.parametrize(
    "foot",
    [
        "Pagina {} van 3", "Sida {} av 3", "Side {} af 3", "Strona {} z 3", "Стр. {} из 3", "Pagina {} din 3",
        "Leht {}", "Stránka {}", "صفحة {}", "صفحة {} من 3", "หน้า {}", "עמוד {} מתוך 3", "Страница {} от 3",
    ],
)  # fmt: skip
def test_pdf_without_page_numbers_in_many_languages(foot: str) -> None:
    assert edges(pages(foot, count=3)) == edges(pages("The mill", foot, count=4)) == set()


@pytest.mark.parametrize(
    ("made", "label"),
    [
        (pages("Question {}", count=9), "Question"),
        (pages("Chapter {}", count=9, first=3), "Chapter"),
        (pages("Kysymys {}", "Sivu {}", count=9), "Kysymys"),
        (pages("Kysymys {}", "{}", count=9), "Kysymys"),
        (pages("Kysymys {}", count=3), "Kysymys"),
        (pages("Umsatz {}", count=9, first=2015), "Umsatz"),
        ([*pages("Kysymys {}", count=5), *pages("Kysymys {}", count=5)], "Kysymys"),
        ([page for n in range(1, 9) for page in pages("Kysymys {}", count=1, first=2 * n)], "Kysymys"),
    ],
)
def test_pdf_keeps_labels_whose_number_is_not_the_pages(made: list[list[str]], label: str) -> None:
    assert edges(made) == {line for page in made for line in page if line.startswith(label)}


@pytest.mark.parametrize(
    "option",
    ["   :alt: A long description\n         that goes on\n", "   :alt:\n     A long: one\n      of it\n"],
)
def test_options_of_restructured_text_go_on_over_lines(tmp_path: Path, option: str) -> None:
    note = ".. note::\n   :class: x\n\n   Mind this.\n      And this.\n"
    text = f".. figure:: a.png\n{option}   :width: 300\n\n   A mill.\n\n{note}"
    blocks = read(write(tmp_path / "g.rst", text)).blocks
    assert [block.text.split() for block in blocks] == [["A", "mill."], "Mind this. And this.".split()]
    text = ".. note:: Mind\n   this.\n      And this.\n"
    assert read(write(tmp_path / "n.rst", text)).content.split() == "Mind this. And this.".split()


GERMAN = "Die Größe der Maße ändert sich, müßig über Bäume" * 3
SPANISH = "El niño pequeño comió más piñas en la montaña. " * 4
CHINESE, JAPANESE, RUSSIAN = "磨坊主把小麦磨成面粉。" * 4, "水車小屋で小麦を粉にする。" * 4, "Мельница"


@pytest.mark.parametrize(
    ("content", "declared", "text"),
    [
        *((text.encode("cp1252"), name, text) for text in (GERMAN, SPANISH) for name in ("gbk", "big5", "shift_jis")),
        *((text.encode("cp1252"), name, text) for text in (GERMAN, SPANISH) for name in ("euc_kr", "utf-8")),
        *((f"{GERMAN}.".encode("cp1252")[-145:], name, f"{GERMAN}."[-145:]) for name in ("utf-16", "utf-32")),
        (CHINESE.encode("gbk") + b"\xff", "gbk", f"{CHINESE}\ufffd"),
        (JAPANESE.encode("shift_jis") + b"\x80", "shift_jis", f"{JAPANESE}\x80"),
        ("①設定を開く".encode("cp932"), "shift_jis", "①設定を開く"),
        ("你好，世界，朱镕基".encode("gbk"), "gb2312", "你好，世界，朱镕基"),
        ("The mill 磨坊主".encode("gbk")[:-1], "gbk", "The mill 磨坊\ufffd"),
        (RUSSIAN.encode("cp1251") + b"\x98", "windows-1251", f"{RUSSIAN}\ufffd"),
        (RUSSIAN.encode() + b"\xff", "utf-8", f"{RUSSIAN}\ufffd"),
        (RUSSIAN.encode() + b"\xff", "no-encoding", f"{RUSSIAN}\ufffd"),
    ],
)  # fmt: skip
def test_a_declared_encoding_holds_if_most_is_valid(content: bytes, declared: str, text: str) -> None:
    assert decode(content, declared, "utf-8") == text


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
def test_notebooks_with_other_line_ends(tmp_path: Path, end: str) -> None:
    sources: list[object] = [f"x=1{end}y=2{end}", [f"x=1{end}", "y=2"]]
    cells = [{"cell_type": "code", "source": source} for source in sources]
    document = read(write(tmp_path / "s.ipynb", json.dumps({"cells": cells})))
    assert [block.text for block in document.blocks] == ["x=1\ny=2"] * 2


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


@pytest.mark.parametrize(
    "element",
    [
        "<a class=skip href='#m'>Skip</a>",
        "<a class=skip>Skip</a>",
        "<a id=skip-link href='#m'>Skip</a> to",
        "<a class=skip-main href='#m'>Skip</a>",
        "<p id=breadcrumbs>Home > Docs</p>",
        "<span class=breadcrumbs>Home > Docs</span>",
        "<address class=footer>The mill</address>",
        "<label class=cookie>Accept cookies</label>",
        "<blockquote class=newsletter>Subscribe</blockquote>",
        "<p class=nav-links>Home, docs</p>",
        "<p class=social-share>Share</p>",
        "<a class=pagination-next href='/2'>Next</a>",
        "<a class=share-button href='/s'>Share</a>",
    ],
)
def test_boilerplate_of_html_beside_the_text(tmp_path: Path, element: str) -> None:
    page = f"<h1>The mill<span class=headerlink>link</span></h1>{element}<p>It grinds flour.</p>"
    document = read(write(tmp_path / "a.html", page))
    assert document.title == "The mill"
    assert document.content.removeprefix("to").strip() == "It grinds flour."


@pytest.mark.parametrize(
    "text",
    [
        "Set the <span class=cookie>session</span> cookie.",
        "Read our <a class=newsletter href='/n'>letter</a> now.",
        "Press <a class=skip href='/s'>Skip</a> to go on.",
        "Open <label class=menu>File</label> and <span class=share>Share</span>.",
        "<a id=pagination>Pages</a> are numbered.",
        "Click <a class=nav-link href=x>Settings</a> to go on.",
        "The <span class=footer>footer</span> of a page.",
        "Read the <b><a class=newsletter-link>newsletter</a></b> of May.",
        "We set <em>two</em> <span class=cookie>session cookies</span> <em>daily</em>.",
        "<a class=pagination href=x>Pages</a> <i>are</i> numbered.",
    ],
)
def test_phrases_of_html_are_read_whatever_their_names(tmp_path: Path, text: str) -> None:
    page = f"<h2><a id=skip-links href='#skip-links'>Skip links</a></h2><p id=cookies>{text}</p><h2>Use</h2><p>So.</p>"
    expected = [(("Skip links",), re.sub("<[^>]*>", "", text)), (("Use",), "So.")]
    assert sections(read(write(tmp_path / "a.html", page))) == expected


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<h2><a class=nav-link href='#x'>Install it</a></h2><p>So.", [(("Install it",), "So.")]),
        ("<h2><a class=toc href='#id3' id=skip-tests>Skip tests</a></h2><p>So.", [(("Skip tests",), "So.")]),
        ("<table><tr><td><span class=cookie-name>id</span></td><td>a day", [((), "id | a day")]),
        ("<pre>a = 1\n<span class=pager>pager()</span></pre>", [((), "a = 1\npager()")]),
        ("<p id=pagination-limits>At most 50 rows.", [((), "At most 50 rows.")]),
        ("<dl><dt><a id=skip href='#skip'>skip</a><dd>Skips a test.", [((), "skip"), ((), "Skips a test.")]),
        ("<p>So.</p><p><a class=share-button>A</a> <a class=share-button>B</a>", [((), "So.")]),
    ],
)
def test_names_of_html_in_headings_cells_and_code(
    tmp_path: Path, page: str, expected: list[tuple[tuple[str, ...], str]]
) -> None:
    before = "<title>A</title><h2>First</h2><p>One.</p><h2>Second</h2><p>Two.</p>"
    assert sections(read(write(tmp_path / "a.html", before + page))) == [
        (("First",), "One."),
        (("Second",), "Two."),
        *((headings or ("Second",), text) for headings, text in expected),
    ]


@pytest.mark.parametrize("word", ["Sonnet", "Psalm", "Recipe", "Session", "Scene"])
def test_pdf_keeps_titles_of_one_page_each(word: str) -> None:
    made = pages(f"{word} {{}}", count=8)
    assert edges(made) == {line for page in made for line in page if line.startswith(word)}


def test_mail_of_plain_parts_that_claim_to_be_encoded(tmp_path: Path) -> None:
    head = "Subject: S\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\nContent-Transfer-Encoding: base64\n\n"
    part = "--b\n\nHello world this is text that I wrote today abcde\n--b--\n"
    document = read(write(tmp_path / "m.eml", head + part))
    assert "Hello world this is text" in document.content


def test_roles_at_the_beginning_of_directives_are_text(tmp_path: Path) -> None:
    text = ".. tip::\n   :ref:`other` is a better way\n     to do it\n"
    assert "better way to do it" in " ".join(read(write(tmp_path / "r.rst", text)).content.split())
