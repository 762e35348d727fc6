"""A document → its texts with sentences and places; texts → spans."""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import NamedTuple

from qontext.corpus import spans
from qontext.corpus.sections import Outline, outline
from qontext.corpus.sentences import SPLITTERS
from qontext.data.places import Place
from qontext.data.places import Span as PlaceSpan
from qontext.data.records import Block, Document
from qontext.frame.errors import printable

_RECORD = re.compile(r"(.+?):(?: row )?(\d+)\Z", re.DOTALL)
"""The place of a record: its file, and its line or row."""


class Splitting(NamedTuple):
    """How documents are split (from the settings of `split`)."""

    keep: bool
    title_in_text: bool
    sentences: str
    language: str
    max_tokens: int
    short_span_probability: float
    seed: int


class Text(NamedTuple):
    """A unit of splitting: a document's text, or a passage that is kept unchanged with its id."""

    document: Document
    text: str
    starts: list[int]
    metadata: str
    file: str
    name: str | None = None
    place: Place = Place()
    outline: Outline | None = None


def texts_of(document: Document, how: Splitting) -> Iterator[Text]:
    """The units of a document: its text, its sections, or with `--keep` each of its passages."""
    split = SPLITTERS[how.sentences]
    title = document.title if how.title_in_text else ""
    record = None if document.blocks else _RECORD.match(printable(document.place))
    place = _line(document.place) if record else Place()
    file = document.file or _address(document) or (PurePath(record[1]).name if record else "")
    if how.keep:
        several = document.passage_metadata or (document.metadata,) * max(1, len(document.passages))
        passages = document.passages or ((document.id, document.content),)
        lines = list(map(_line, document.passage_places)) or [place] * len(passages)
        for (name, text), metadata, line in zip(passages, several, lines):
            yield Text(document, text, split(text, how.language), metadata, file, name, line)
    elif document.blocks:
        first = document.blocks[0]
        head = (Block(title, first.headings, first.page, first.line),) if title else ()
        result = outline((*head, *document.blocks), split, how.language, how.max_tokens)
        yield Text(document, result.text, result.starts, document.metadata, file, outline=result)
    else:
        above = f"{title}\n\n" if title else ""
        text, spans, start = above + document.content, [], len(above)
        for (_, passage), where in zip(document.passages, document.passage_places):
            number = _line(where).line
            spans.append(PlaceSpan(start, line=number, last_line=number))
            start += len(passage) + len("\n\n")
        place = place._replace(spans=tuple(spans))
        yield Text(document, text, split(text, how.language), document.metadata, file, place=place)


def place_of(text: Text, begin: int, end: int, headings: tuple[str, ...]) -> Place:
    """The place of a passage, text[begin:end]."""
    if text.outline:
        return text.outline.place(begin, end, headings)
    if not text.place.spans:
        return text.place
    lines = text.place.spans
    first = max(0, bisect.bisect_right(lines, begin, key=lambda span: span.start) - 1)
    inside = [span for span in lines[first:] if span.start < end or span is lines[first]]
    spans = tuple(span._replace(start=max(0, span.start - begin)) for span in inside)
    return Place(line=spans[0].line, last_line=spans[-1].line, spans=spans if len(spans) > 1 else ())


def _line(place: str) -> Place:
    """The line or row of a record, if its place (``docs.jsonl:17``) has one."""
    record = _RECORD.match(place)
    return Place(line=int(record[2]), last_line=int(record[2])) if record else Place()


def _address(document: Document) -> str:
    """The URL of a record."""
    url = json.loads(document.metadata).get("url") if '"url"' in document.metadata else ""
    return url if isinstance(url, str) else ""


def spans_of(text: Text, tokens: list[int], how: Splitting) -> Iterable[tuple[spans.Span, tuple[str, ...]]]:
    """The passages of a text, as spans of sentences, with their headings."""
    key, limit, short = f"{how.seed} {text.document.id}", how.max_tokens, how.short_span_probability
    if text.outline is not None:
        return text.outline.spans(tokens, limit, short, key)
    if text.name is not None:
        return [(spans.Span(0, len(tokens), sum(tokens) + spans.SPECIAL_TOKENS), ())]
    return [(span, ()) for span in spans.group(tokens, limit, short, key)]
