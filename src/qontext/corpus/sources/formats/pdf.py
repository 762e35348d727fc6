"""PDF, read by PDFium: the text of each page; sections by the document's outline or, without one, by lines in larger
letters. Lines that many pages share, such as running heads and page numbers, and tables of contents are removed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext.corpus.sources.formats.base import (
    FileText,
    HeadingOrBlock,
    Unreadable,
    collapse,
    opened,
    stem,
    under_headings,
)
from qontext.data.records import Block
from qontext.frame.errors import missing_extra

_MOST_PAGES, _MOST_TEXT = 20_000, 64 << 20
_LEAST_TEXT = 16
"""Characters per page below which a document is considered a scan."""
_CONTENTS = re.compile(r"\.(?: ?\.){4,} *[\divxlc]+ *$")
"""A line of a table of contents, with dot leaders."""
_LARGER = 1.15
"""Size of a heading's letters, as a multiple of that of most letters."""
_LONGEST_HEADING, _MOST_HEADINGS = 120, 0.2
"""Characters of a heading; the share of lines above which large letters are no headings."""
_NUMBER = re.compile(r"(?<!\d)\d{1,6}(?!\d)|\b[ivxlc]+\b")
_WORD = re.compile(r"[^\W\d]+")
_PAGE_WORDS = frozenset(_WORD.findall(
    "af av az bl blatt blz dari de di diapositive din fol folie hal halaman iš leht lk lpp od of oldal p pag pagina page "
    "pagină pg psl puslapis pàgina pág página s sayfa seite sida sidan side sivu slide str strana strany stranica strona "
    "stránka sur trang ud van von z ze από σελ σελίδα з из от с слайд стр страница сторінка מתוך עמוד صفحة من หน้า ページ "
    "頁 页 第 페이지 쪽"
))  # fmt: skip
"""Words beside a page's number. Another word alone before a number makes a label such as "Question 4"."""
_LABELS = frozenset(
    "abbildung act activity algorithm annex annexe answer antwort appendix article artikel aufgabe beispiel canto "
    "capitolo capítulo card case chapitre chapter claim day definition ejercicio entry esercizio example exemple "
    "exercice exercise exercises exhibit experiment figure folge frage hymn item kapitel kapittel law lecture lektion "
    "lemma lesson letter level lot module note oppgave part parte partie patient phase plate poem pregunta principle "
    "problem problems problème proof psalm puzzle question questions quiz recipe requirement rozdział rule sample "
    "scenario scene schedule schritt sección section session sheet song sonnet stage stanza step story tabelle table "
    "task teil test theorem topic unit uppgift verse vraag week worksheet вопрос глава задача урок часть".split()
)
"""Words of labels that count other things than pages, even if there is one on each page."""
_LEAST_SHARE, _YEARS = 0.9, 1900
"""The share of the pages with a label on which its number follows the page's if it is the page's; numbers from here on
may be years."""
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_HYPHEN = re.compile("(?<=[a-zà-ÿ])[-\\u00ad\\u0002\\ufffe]\r?\n(?=[a-zà-ÿ])")


def read(path: Path, encoding: str) -> Iterator[FileText]:
    try:
        import pypdfium2
    except ImportError:
        raise missing_extra("pypdfium2", "docs", "Reading PDF files") from None
    content = opened(path)
    try:
        document = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower() or "security" in str(error).lower():
            raise Unreadable("encrypted", "is encrypted; save a copy without a password") from None
        raise Unreadable("damaged document", "is not a readable PDF file") from None
    try:
        pages = _pages(document)
        if _is_scan(pages):
            raise Unreadable(
                "no text layer", "has no text layer: it is a scan and needs text recognition (OCR) first"
            )
        outline = _outline(document) or _large_lines(document)
        title, metadata = _metadata(document)
    except pypdfium2.PdfiumError as error:
        raise Unreadable("damaged document", f"is not a readable PDF file ({error})") from None
    finally:
        document.close()
    left = _without_repeated(pages)
    texts = ["\n".join(lines) for lines in (pages if _is_scan(left) else left)]
    yield FileText(title or stem(path), tuple(under_headings(_parts(texts, outline))), metadata)


def _pages(document: Any) -> list[list[str]]:
    """The lines of each page."""
    count = len(document)
    if count > _MOST_PAGES:
        raise Unreadable("too large", f"has {count:,} pages, more than {_MOST_PAGES:,}")
    pages: list[list[str]] = []
    size = 0
    for number in range(count):
        page = document[number]
        text_page = page.get_textpage()
        text = _HYPHEN.sub("", text_page.get_text_bounded())
        text_page.close()
        page.close()
        size += len(text)
        if size > _MOST_TEXT:
            raise Unreadable("too large", f"contains more than {_MOST_TEXT >> 20} MiB of text")
        text = re.sub("[\\x00-\\x08\\x0b\\x0e-\\x1f\\ufffe\\uffff\\ud800-\\udfff]", "", text)
        pages.append([line.strip() for line in text.splitlines() if not _CONTENTS.search(line)])
    return pages


def _is_scan(pages: list[list[str]]) -> bool:
    """True if there is hardly any text."""
    return sum(len("\n".join(lines)) for lines in pages) < _LEAST_TEXT * max(1, len(pages))


def _without_repeated(pages: list[list[str]]) -> list[list[str]]:
    """The pages without the lines at their edges that are the same on many pages, but for the page number. A page has one
    number: "Handbook 4" has it if no other line does."""
    times = Counter(key for number, lines in enumerate(pages) for key in _edge_keys(lines, number))
    often = max(3, len(pages) * 0.4)
    left = []
    for number, lines in enumerate(pages):
        keys = [(at, *key) for at in _edge(lines) for key in _keys(lines[at], number)]
        found = {(at, key) for at, key, least, label in keys if not label and times[key] > min(often, least)}
        if not any("\0" in key for _, key in found):
            found |= {
                (at, key)
                for at, key, least, label in keys
                if label and times[key] > least and times[key] >= _LEAST_SHARE * times[label]
            }
        removed = {at for at, _ in found}
        left.append([line for at, line in enumerate(lines) if at not in removed])
    return left


def _edge(lines: list[str]) -> list[int]:
    """The positions of the first and last two lines of a page."""
    filled = [at for at, line in enumerate(lines) if line]
    return sorted({*filled[:2], *filled[-2:]})


def _edge_keys(lines: list[str], number: int) -> set[str]:
    """The keys of the lines at the edges of a page, and of their labels."""
    keys = [key for at in _edge(lines) for key in _keys(lines[at], number)]
    return {key for key, _, label in keys} | {label for _, _, label in keys if label}


def _keys(line: str, number: int) -> Iterator[tuple[str, float, str]]:
    """(key, number of pages up to which it may be chance, key of its label with any number) of a line on a page: the line
    itself, and the line with each of its numbers replaced by its distance from the page's. Without a label, it is empty.
    """
    yield line, math.inf, ""
    matches = list(_NUMBER.finditer(line))
    is_outside = bool(matches) and (matches[0].start() == 0 or matches[-1].end() == len(line))
    for match in matches:
        before, after = line[: match.start()], line[match.end() :]
        others = {*_WORD.findall(f"{before} {after}".lower())} - _PAGE_WORDS
        key = f"{before}\0{_value(match[0]) - number}\0{after}"
        word = before.strip(" .").lower()
        if before.endswith(" ") and word in others:
            if word not in _LABELS and _value(match[0]) < _YEARS:
                yield key, 3, f"{before}\0{match[0].isdecimal()}\0{after}"
            continue
        least = 1 if match[0] == line else math.inf if not is_outside else 5 if others else 2
        yield key, least, ""


def _value(digits: str) -> int:
    """The value of a decimal or Roman number."""
    if digits.isdecimal():
        return int(digits)
    values = [_ROMAN[digit] for digit in digits]
    return sum(-one if one < following else one for one, following in zip(values, [*values[1:], 0]))


def _outline(document: Any) -> list[tuple[int, int, str]]:
    """(page from 0, level from 0, title) of the document's bookmarks, in order."""
    entries = []
    for bookmark in document.get_toc(max_depth=6):
        target = bookmark.get_dest()
        page = target.get_index() if target is not None else None
        if page is not None and (title := collapse(bookmark.get_title())):
            entries.append((page, bookmark.level, title[:200]))
        if len(entries) >= 10_000:
            break
    return entries


def _large_lines(document: Any) -> list[tuple[int, int, str]]:
    """(page from 0, level from 0, text) of lines in larger letters than most, in order, as an outline; neighbors of one
    size are one. Empty if they are not as rare as headings are."""
    lines: list[tuple[int, float, str]] = []
    for number in range(len(document)):
        page = document[number]
        text_page = page.get_textpage()
        lines += [(number, size, line) for size, line in _sized(text_page) if not _CONTENTS.search(line)]
        text_page.close()
        page.close()
    letters: Counter[float] = Counter()
    for _, size, line in lines:
        letters[size] += len(line)
    if not letters:
        return []
    most = letters.most_common(1)[0][0]
    entries: list[tuple[int, float, str]] = []
    follows = False
    for number, size, line in lines:
        is_large = size >= _LARGER * most and any(map(str.isalpha, line))
        if is_large and follows and entries[-1][:2] == (number, size):
            entries[-1] = (number, size, f"{entries[-1][2]} {line}")
        elif is_large:
            entries.append((number, size, line))
        follows = is_large
    pages = Counter(text for _, _, text in entries)
    entries = [entry for entry in entries if len(entry[2]) <= _LONGEST_HEADING and pages[entry[2]] <= 2]
    if not 2 <= len(entries) <= max(2, _MOST_HEADINGS * len(lines)):
        return []
    levels = sorted({size for _, size, _ in entries}, reverse=True)
    if len(levels) > 1 and [number for number, size, _ in entries if size == levels[0]] == [0]:
        entries = [entry for entry in entries if entry[1] != levels[0]]  # the title of the whole
        levels = levels[1:]
    return [(number, levels.index(size), text) for number, size, text in entries]


def _sized(text_page: Any) -> Iterator[tuple[float, str]]:
    """The size of the first letter, and the text, of each line of a page."""
    from pypdfium2 import raw

    at = 0
    for line in text_page.get_text_range().splitlines(keepends=True):
        if text := line.strip():
            begin = at + len(line) - len(line.lstrip())
            yield round(raw.FPDFText_GetFontSize(text_page.raw, begin), 1), collapse(text)
        at += len(line)


def _metadata(document: Any) -> tuple[str, dict[str, Any]]:
    about = document.get_metadata_dict(skip_empty=True)
    title = collapse(about.get("Title", ""))
    if re.search(r"\.(docx?|tex|dvi|indd|qxd|pdf|odt)$|^untitled|^microsoft word", title, re.IGNORECASE):
        title = ""  # the name of the original file
    metadata = {"author": collapse(about.get("Author", ""))}
    if date := re.match(r"(?:D:)?(\d{4})(\d\d)?(\d\d)?", about.get("CreationDate", "")):
        metadata["date"] = "-".join(part for part in date.groups() if part)
    return title, {key: value for key, value in metadata.items() if value}


def _parts(pages: list[str], outline: list[tuple[int, int, str]]) -> Iterator[HeadingOrBlock]:
    """A block per page and section. A section starts at the line of its title, else at the top of its page."""
    coming = sorted(enumerate(outline), key=lambda item: (item[1][0], item[0]))
    entries = [entry for _, entry in coming]
    at = 0
    for number, text in enumerate(pages):
        position = 0
        while at < len(entries) and entries[at][0] <= number:
            page, level, title = entries[at]
            at += 1
            begin, end = _find(text, title, position) if page == number else (position, position)
            if text[position:begin].strip():
                yield Block(text[position:begin].strip(), page=number + 1, tight=position == 0)
            yield level, Block(title, page=number + 1)
            if begin == end:
                yield None  # the title stands in the text, if anywhere
            position = end
        if text[position:].strip():
            # The text of a page continues that of the previous page.
            yield Block(text[position:].strip(), page=number + 1, tight=position == 0)


def _find(text: str, title: str, position: int) -> tuple[int, int]:
    """The span of a title on its page as separate lines, maybe after a number; (position, position) if not found."""
    words = r"\s+".join(map(re.escape, title.split()))
    match = re.compile(rf"^(?:[\dA-Z.]+\s+)?{words}[ \t]*$", re.MULTILINE | re.IGNORECASE).search(
        text, position
    )
    return (match.start(), match.end()) if match else (position, position)
