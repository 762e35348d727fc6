"""EPUB: the chapters of a book in the order of its spine; the heading above a chapter's text is the chapter's own."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from qontext.corpus.sources.formats import html
from qontext.corpus.sources.formats.base import (
    LARGEST_MARKUP,
    FileText,
    Unreadable,
    archive,
    collapse,
    member,
    stem,
)
from qontext.corpus.sources.formats.docx import parse_xml
from qontext.data.records import Block

_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html")
_MOST = 4 * LARGEST_MARKUP


def read(path: Path, encoding: str) -> Iterator[FileText]:
    with archive(path) as book:
        names = set(book.namelist())
        if _ENCRYPTION in names and _is_protected(member(book, _ENCRYPTION)):
            raise Unreadable("encrypted", "is copy-protected (DRM)")
        if _CONTAINER not in names:
            raise Unreadable("damaged document", f"contains no {_CONTAINER}")
        container = parse_xml(member(book, _CONTAINER), _CONTAINER)
        root = next((e.get("full-path") for e in container.iter("{*}rootfile")), None)
        if root not in names:
            raise Unreadable("damaged document", "its package file is missing")
        package = parse_xml(member(book, root), root)
        title = next((collapse(e.text or "") for e in package.iter("{*}title")), "")
        blocks = tuple(_chapters(book, package, posixpath.dirname(root), names, encoding))
    yield FileText(title or stem(path), blocks, _metadata(package))


def _is_protected(encryption: bytes) -> bool:
    """True if chapters are encrypted. (Encrypted fonts are common and ignored.)"""
    return any(
        name in encryption for name in (b"adobe.com/adept", b"apple.com/fairplay", b"readium.org/2014/01/lcp")
    )


def _metadata(package: Any) -> dict[str, Any]:
    values = {}
    for key, tag in (("author", "creator"), ("date", "date"), ("lang", "language")):
        value = next((collapse(e.text or "") for e in package.iter("{*}" + tag)), "")
        if value:
            values[key] = value[:10] if key == "date" else value
    return values


def _chapters(
    book: zipfile.ZipFile, package: Any, folder: str, names: set[str], encoding: str
) -> Iterator[Block]:
    items = {item.get("id"): item for item in package.iter("{*}item")}
    size = 0
    for reference in package.iter("{*}itemref"):
        item = items.get(reference.get("idref"))
        if item is None or item.get("media-type") not in _PAGES or reference.get("linear") == "no":
            continue
        if "nav" in (item.get("properties") or "").split():
            continue
        name = posixpath.normpath(posixpath.join(folder, unquote(item.get("href") or "")))
        if name not in names:
            continue
        size += book.getinfo(name).file_size
        if size > _MOST:
            raise Unreadable("too large", f"its chapters unpack to more than {_MOST >> 20} MiB")
        page = html.parse(member(book, name), encoding)
        for block in page.blocks:
            headings = (page.title, *block.headings) if page.title else block.headings
            yield Block(block.text, headings, tight=block.tight, code=block.code)
