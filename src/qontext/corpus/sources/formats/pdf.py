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

from qontext.corpus.sources.formats import (
    LARGEST,
    FileText,
    HeadingOrBlock,
    Unreadable,
    collapse,
    read_bytes,
    stem,
    under_headings,
)
from qontext.data.lines import plain_name
from qontext.data.records import Block

_LEAST_TEXT = 16
"""Characters per page below which a document is considered a scan."""
_CONTENTS = re.compile(r"\.(?: ?\.){4,} *[\divxlc]+ *$")
"""A line of a table of contents, with dot leaders."""
_LARGER = 1.15
"""Size of a heading's letters, as a multiple of that of most letters."""
_LONGEST_HEADING, _MOST_HEADINGS = 120, 0.2
"""Characters of a heading; the share of lines above which large letters are no headings."""
_NUMBER = re.compile(r"(?<!\d)\d{1,6}(?!\d)|\b[ivxlc]+\b")
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
_YEARS = 1900
"""Numbers from here on may be years."""
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_HYPHEN = re.compile("(?<=[a-zà-ÿ])[-\\u00ad\\u0002\\ufffe]\r?\n(?=[a-zà-ÿ])")
_UNWRITTEN = re.compile("[\\x00-\\x08\\x0b\\x0e-\\x1f\\ufffe\\uffff\\ud800-\\udfff]")


def read(path: Path, encoding: str) -> Iterator[FileText]:
    import pypdfium2

    compressed = plain_name(path) != path.name
    try:
        document = pypdfium2.PdfDocument(read_bytes(path, LARGEST) if compressed else path)
        pages = [list(_lines(document[number])) for number in range(len(document))]
        outline = _outline(document) or _large_lines(document)
        title, metadata = _metadata(document)
        document.close()
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower() or "security" in str(error).lower():
            raise Unreadable("encrypted", "is encrypted; save a copy without a password") from None
        raise Unreadable("damaged document", f"is not a readable PDF file ({error})") from None
    if _is_scan(pages):
        message = "has no text layer: it is a scan and needs text recognition (OCR) first"
        raise Unreadable("no text layer", message)
    left = _without_repeated(pages)
    texts = ["\n".join(lines) for lines in (pages if _is_scan(left) else left)]
    yield FileText(title or stem(path), tuple(under_headings(_parts(texts, outline))), metadata)


def _lines(page: Any) -> Iterator[str]:
    """The lines of a page, without those of a table of contents."""
    text = _UNWRITTEN.sub("", _HYPHEN.sub("", page.get_textpage().get_text_bounded()))
    page.close()
    return (line.strip() for line in text.splitlines() if not _CONTENTS.search(line))


def _is_scan(pages: list[list[str]]) -> bool:
    """True if there is hardly any text."""
    return sum(len("\n".join(lines)) for lines in pages) < _LEAST_TEXT * max(1, len(pages))


def _without_repeated(pages: list[list[str]]) -> list[list[str]]:
    """The pages without the lines at their edges that are the same on many pages, but for the page number."""
    edges = [{at: _keys(lines[at], number) for at in _edge(lines)} for number, lines in enumerate(pages)]
    times = Counter(key for edge in edges for key in {key for keys in edge.values() for key in keys})
    often = max(3, len(pages) * 0.4)
    return [
        [
            line
            for at, line in enumerate(lines)
            if not any(times[key] > min(often, least) for key, least in edge.get(at, {}).items())
        ]
        for lines, edge in zip(pages, edges)
    ]


def _edge(lines: list[str]) -> list[int]:
    """The positions of the first and last two lines of a page."""
    filled = [at for at, line in enumerate(lines) if line]
    return sorted({*filled[:2], *filled[-2:]})


def _keys(line: str, number: int) -> dict[str, float]:
    """The keys that a line at the edge of a page may share with those of other pages → the number of pages up to which that
    may be chance: the line itself, and the line with each of its numbers replaced by its distance from the page's."""
    keys = {line: math.inf}
    for match in _NUMBER.finditer(line):
        before, after = line[: match.start()], line[match.end() :]
        if before.strip(" .").lower() not in _LABELS and _value(match[0]) < _YEARS:
            keys[f"{before}\0{_value(match[0]) - number}\0{after}"] = 1 if match[0] == line else math.inf
    return keys


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
    return entries


def _large_lines(document: Any) -> list[tuple[int, int, str]]:
    """(page from 0, level from 0, text) of lines in larger letters than most, in order, as an outline; neighbors of one
    size are one. Empty if they are not as rare as headings are."""
    lines: list[tuple[int, float, str]] = []
    for number in range(len(document)):
        page = document[number]
        lines += [
            (number, size, line) for size, line in _sized(page.get_textpage()) if not _CONTENTS.search(line)
        ]
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
