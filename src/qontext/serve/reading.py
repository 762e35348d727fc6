"""Reading a document through MCP: from a passage on, by lines, under a heading, or a page; as much as an agent wants."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import BaseModel

from qontext.data.places import Place
from qontext.frame.errors import QontextError
from qontext.serve.service import Service
from qontext.serve.systems import ServedSystem

CHARACTERS_PER_TOKEN = 4
"""A cautious mean for English; what matters is that an answer has a limit."""
CUT = " …"
"""The sign of text that was left out."""
_LINES = re.compile(r"\s*(\d+)\s*(?:[-–:]\s*(\d+)\s*)?")


class Reading(BaseModel):
    document: str
    title: str
    text: str
    passages: int
    """The number of passages of the document."""
    next: int | None = None
    """The passage to continue from, if the text was truncated."""
    offset: int = 0
    """The characters of that passage that were read, if it is longer than the limit."""
    place: str = ""
    """The place where the text begins: file or URL, headings, and page, cell or line, if known."""


def read(
    service: Service,
    document: str,
    *,
    start: int = 1,
    offset: int = 0,
    lines: str | None = None,
    heading: str | None = None,
    page: int | None = None,
    characters: int,
) -> Reading:
    """The passages of a document from one on, or those that have these lines, stand under this heading, or on this page;
    without so many characters of the passage to start from."""
    passages_of_it = service.document(document)
    system = next(one for one in service.systems.values() if one.passages.numbers_of(document))
    numbers = system.passages.numbers_of(document)
    if start > len(numbers):
        raise QontextError(f"there is no passage {start:,}: the document has {len(numbers)} passages")
    places = [system.passages.place(number) for number in numbers]
    wanted = [n for n in range(start - 1, len(numbers)) if _is_wanted(places[n], lines, heading, page)]
    if not wanted:
        raise QontextError(_nothing(lines, heading, page, places))
    texts: list[str] = []
    length, following, ahead = 0, None, 0
    for number in wanted:
        skipped = offset if number == start - 1 else 0
        text = passages_of_it[number].text[skipped:]
        length += len(text)
        if texts and length > characters:
            following = number + 1
            break
        texts.append(cut(text, characters))
        if len(text) > characters:
            following, ahead = number + 1, skipped + len(texts[-1]) - len(CUT)
            break
    return Reading(
        document=document,
        title=passages_of_it[0].title,
        text="\n\n".join(texts),
        passages=len(numbers),
        next=following,
        offset=ahead,
        place=_place(system, numbers[wanted[0]]),
    )


def cut(text: str, limit: int) -> str:
    """The beginning of a text that is longer, in whole words."""
    return text if len(text) <= limit else (text[:limit].rsplit(" ", 1)[0] or text[:limit]) + CUT


def _is_wanted(place: Place, lines: str | None, heading: str | None, page: int | None) -> bool:
    if lines is not None:
        first, last = _range(lines)
        begin, end = _lines_of(place)
        if begin is None or begin > last or (end or begin) < first:
            return False
    if heading is not None:
        below = {name for span in place.spans for name in span.headings}
        if not any(heading.casefold() in name.casefold() for name in (*place.headings, *below)):
            return False
    if page is not None:
        pages = [place.page, place.last_page, *(span.page for span in place.spans)]
        known = [number for number in pages if number is not None]
        return bool(known) and min(known) <= page <= max(known)
    return True


def _lines_of(place: Place) -> tuple[int | None, int | None]:
    """The first and the last line of a passage."""
    starts = [span.line for span in place.spans if span.line is not None]
    ends = [span.last_line for span in place.spans if span.last_line is not None]
    first = place.line if place.line is not None else min(starts, default=None)
    return first, max([*ends, *([place.last_line] if place.last_line is not None else [])], default=first)


def _range(lines: str) -> tuple[int, int]:
    match = _LINES.fullmatch(lines)
    if match is None or len(lines) > 40:
        raise QontextError(f"{lines[:40]!r} are no lines: write 12 or 12-40")
    first = int(match[1])
    return first, max(first, int(match[2] or first))


def _nothing(lines: str | None, heading: str | None, page: int | None, places: Sequence[Place]) -> str:
    """The reason why nothing is read, with what there is."""
    if heading is not None:
        there = dict.fromkeys(name for place in places for name in place.headings)
        listed = "; ".join(list(there)[:12]) or "none"
        return f"nothing stands under a heading with {heading[:60]!r}. Its headings: {listed}"
    if page is not None:
        return f"nothing is known to stand on page {page:,}"
    ends = [end for place in places if (end := _lines_of(place)[1]) is not None]
    return f"nothing stands on the lines {lines}" + (f": the last one is {max(ends):,}" if ends else "")


def _place(system: ServedSystem, number: int) -> str:
    place = system.passages.place(number)
    return str(place.within(system.passages[number].text, 0, 1))
