"""Small documents of every binary format, made by other programs where one is at hand."""

from __future__ import annotations

import zipfile
from pathlib import Path

CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
)


def docx(path: Path) -> Path:
    """A manual with a title, two sections, a list and a table."""
    import docx as library

    document = library.Document()
    document.add_heading("The manual", 0)
    document.add_paragraph("What this is about.")
    document.add_heading("Install", 1)
    document.add_paragraph("First the parts.")
    for item in ("a hammer", "a nail"):
        document.add_paragraph(item, style="List Bullet")
    document.add_heading("On Linux", 2)
    table = document.add_table(2, 2)
    for row, values in zip(table.rows, (("tool", "price"), ("saw", "9"))):
        for cell, value in zip(row.cells, values):
            cell.text = value
    document.save(path)
    return path


def epub(path: Path, chapters: dict[str, str]) -> Path:
    """A book with these chapters: name → XHTML of the body. Its navigation is not in the spine."""
    items = "".join(f'<item id="{n}" href="{n}.xhtml" media-type="application/xhtml+xml"/>' for n in chapters)
    nav = '<item id="nav" href="nav.xhtml" properties="nav" media-type="application/xhtml+xml"/>'
    spine = "".join(f'<itemref idref="{name}"/>' for name in chapters)
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata>'
        "<dc:title>A book</dc:title><dc:creator>Bob</dc:creator><dc:date>2020-02-03T00:00:00Z</dc:date>"
        f"</metadata><manifest>{items}{nav}</manifest><spine>{spine}</spine></package>"
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr("mimetype", "application/epub+zip")
        book.writestr("META-INF/container.xml", CONTAINER)
        book.writestr("OEBPS/book.opf", package)
        book.writestr("OEBPS/nav.xhtml", "<html><body>Navigation only.</body></html>")
        for name, body in chapters.items():
            book.writestr(f"OEBPS/{name}.xhtml", f"<?xml version='1.0'?><html><body>{body}</body></html>")
    return path


def pdf(
    path: Path, pages: list[list[str]], *, outline: dict[int, str] | None = None, password: str = ""
) -> Path:
    """A page for each list of lines, those that begin with ``#`` in larger letters; `outline` has the bookmark of a page,
    counted from 0."""
    from reportlab.lib.pdfencrypt import StandardEncryption
    from reportlab.pdfgen.canvas import Canvas

    encryption = StandardEncryption(password) if password else None
    canvas = Canvas(str(path), invariant=1, encrypt=encryption)
    canvas.setTitle("The report")
    canvas.setAuthor("Eve")
    for number, lines in enumerate(pages):
        if title := (outline or {}).get(number):
            canvas.bookmarkPage(title)
            canvas.addOutlineEntry(title, title)
        for row, line in enumerate(lines):
            canvas.setFont("Helvetica", 18 if line.startswith("#") else 12)
            canvas.drawString(72, 760 - 20 * row, line.removeprefix("#").strip())
        if not lines:
            canvas.rect(100, 100, 300, 300, fill=1)
        canvas.showPage()
    canvas.save()
    return path
