"""A document → its texts with sentences and places → spans of sentences, which are its passages.

A document with headings is split by section, so no passage extends into the next section or ends with its heading. Only a
section that is shorter than a quarter of the limit is joined with the next section, heading included, if both fit.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

from qontext.corpus.sentences import (
    SPECIAL_TOKENS,
    SPLITTERS,
    SentenceSpan,
    Splitter,
    by_code,
    group,
    shortened,
)
from qontext.data.places import SEPARATOR, Place, TextPlace, common_prefix, joined
from qontext.data.records import Block, Document
from qontext.frame.errors import printable

_SHORT = 4


@dataclass
class Outline:
    """A document's text, with each heading on its own line; its sentences, and which of them are headings."""

    text: str
    starts: list[int]
    sections: list[tuple[int, int, int]] = field(default_factory=list)
    """(first heading's sentence, first sentence of the text, sentence after the last) of each section."""
    paths: list[tuple[str, ...]] = field(default_factory=list)
    blocks: list[tuple[int, Block]] = field(default_factory=list)
    """(start, block), in order."""

    def spans(
        self, tokens: list[int], max_tokens: int, short: float, key: str
    ) -> Iterator[tuple[SentenceSpan, tuple[str, ...]]]:
        """The passages as spans of sentences, with their headings; `tokens` has the length of each sentence."""
        for number, (begin, end, path) in enumerate(self._stretches(tokens, max_tokens)):
            for span in group(tokens[begin:end], max_tokens, short, f"{key} {number}" if number else key):
                yield SentenceSpan(span.first + begin, span.last + begin, span.tokens), path

    def _stretches(self, tokens: list[int], max_tokens: int) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """(first sentence, sentence after the last, path) of each section; short ones are joined with the next."""
        stretch: tuple[int, int, int, tuple[str, ...]] | None = None
        above = 0  # number of headings that only the stretch's path has, not its text
        for (heading, first, end), previous, path in zip(self.sections, [(), *self.paths], self.paths):
            shared = () if stretch is None else common_prefix([stretch[3], path])
            fits = stretch is not None and sum(tokens[stretch[0] : end]) + SPECIAL_TOKENS <= max_tokens
            if stretch is not None and fits and len(shared) >= above:
                # A heading that is no longer in the path is kept in the text.
                stretch = (stretch[0], stretch[1] if shared == stretch[3] else stretch[0], end, shared)
            else:
                if stretch is not None:
                    yield stretch[1:]
                stretch, above = (heading, first, end, path), len(common_prefix([previous, path]))
            if (sum(tokens[stretch[1] : end]) + SPECIAL_TOKENS) * _SHORT >= max_tokens:
                yield stretch[1:]
                stretch = None
        if stretch is not None:
            yield stretch[1:]

    def place(self, begin: int, end: int, headings: tuple[str, ...]) -> Place:
        """The place of text[begin:end], a passage below these headings."""
        text, own = self.text[begin:end], len(headings)
        first = max(0, bisect.bisect_right(self.blocks, begin, key=lambda item: item[0]) - 1)
        last = max(first + 1, bisect.bisect_left(self.blocks, end, key=lambda item: item[0]))
        spans = []
        for at, block in self.blocks[first:last]:
            start, line = max(at, begin), block.line
            line = None if line is None else line + self.text.count("\n", at, start)
            stop = min(at + len(block.text), end)
            last_line = None if line is None else line + self.text.count("\n", start, stop)
            spans.append(
                TextPlace(start - begin, block.headings[own:], block.page, line, last_line, block.cell)
            )
        lines = [span.last_line for span in spans if span.last_line is not None]
        page, cell = (getattr(spans[0], name) for name in ("page", "cell"))
        spans = list(joined(spans, text))
        return Place(
            "",
            headings,
            page,
            spans[0].line,
            max(lines, default=None),
            cell=cell,
            spans=tuple(spans) if len(spans) > 1 or spans[0].headings else (),
        )


def outline(blocks: tuple[Block, ...], split: Splitter, language: str, max_tokens: int) -> Outline:
    """Join the document's text. Text continues across pages; any other block ends a sentence. Sentences that
    are longer than a passage are cut: they are usually tables, lists or poems.
    """
    parts: list[str] = []
    result = Outline("", [])
    size = 0

    def append(text: str) -> int:
        nonlocal size
        begin = size
        parts.append(text)
        size += len(text)
        return begin

    previous: tuple[str, ...] = ()
    for headings, of_section in itertools.groupby(blocks, key=lambda block: block.headings):
        if parts:
            append("\n\n")
        heading = len(result.starts)
        shared = len(common_prefix([previous, headings]))
        section = list(of_section)
        if names := "\n".join(headings[shared:]):
            result.starts.append(append(names))
            result.blocks.append((result.starts[-1], dataclasses.replace(section[0], text="")))
            append("\n")
        first = len(result.starts)
        for run in _runs(section):
            if len(result.starts) > first:
                append("\n" if run[0].tight else "\n\n")
            begin = size
            for block in run:
                if size > begin:
                    append("\n")
                result.blocks.append((append(block.text), block))
            text = "\n".join(block.text for block in run)
            most = max_tokens - SPECIAL_TOKENS
            starts = by_code(text, most) if run[0].code else split(text, language)
            starts = shortened(text, starts, most)
            result.starts += [begin + start for start in starts]
        result.sections.append((heading, first, len(result.starts)))
        result.paths.append(headings)
        previous = headings
    result.text = "".join(parts)
    return result


def _runs(blocks: list[Block]) -> Iterator[list[Block]]:
    """Blocks with continuous text: those of consecutive pages."""
    run: list[Block] = []
    for block in blocks:
        if run and not (block.tight and block.page is not None):
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def title_of(title: str, headings: tuple[str, ...]) -> str:
    """A passage's title: its document's, and the headings above it."""
    path = headings[1:] if headings[:1] == (title,) else headings
    return SEPARATOR.join(part for part in (title, *path) if part)


_RECORD = re.compile(r"(.+?):(?: row )?(\d+)\Z", re.DOTALL)
"""The place of a record: its file, and its line or row."""


class Splitting(NamedTuple):
    """The settings of `split` that say how documents are split."""

    keep: bool
    title: str
    sentences: str
    language: str
    max_tokens: int
    short_span_probability: float
    seed: int


class SectionText(NamedTuple):
    """A unit of splitting: a document's text, or a passage that is kept unchanged with its id."""

    document: Document
    text: str
    starts: list[int]
    metadata: str
    file: str
    name: str | None = None
    place: Place = Place()
    outline: Outline | None = None


def texts_of(document: Document, how: Splitting) -> Iterator[SectionText]:
    """The units of a document: its text, its sections, or with `--keep` each of its passages."""
    split = SPLITTERS[how.sentences]
    title = document.title if how.title == "text" else ""
    record = None if document.blocks else _RECORD.match(printable(document.place))
    place = _line(document.place) if record else Place()
    file = document.file or _address(document) or (PurePath(record[1]).name if record else "")
    if how.keep:
        several = document.passage_metadata or (document.metadata,) * max(1, len(document.passages))
        passages = document.passages or ((document.id, document.content),)
        lines = list(map(_line, document.passage_places)) or [place] * len(passages)
        for (name, text), metadata, line in zip(passages, several, lines):
            yield SectionText(document, text, split(text, how.language), metadata, file, name, line)
    elif document.blocks:
        first = document.blocks[0]
        head = (Block(title, first.headings, first.page, first.line),) if title else ()
        result = outline((*head, *document.blocks), split, how.language, how.max_tokens)
        yield SectionText(document, result.text, result.starts, document.metadata, file, outline=result)
    else:
        above = f"{title}\n\n" if title else ""
        text, spans, start = above + document.content, [], len(above)
        for (_, passage), where in zip(document.passages, document.passage_places):
            number = _line(where).line
            spans.append(TextPlace(start, line=number, last_line=number))
            start += len(passage) + len("\n\n")
        place = place._replace(spans=tuple(spans))
        yield SectionText(document, text, split(text, how.language), document.metadata, file, place=place)


def place_of(text: SectionText, begin: int, end: int, headings: tuple[str, ...]) -> Place:
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


def spans_of(
    text: SectionText, tokens: list[int], how: Splitting
) -> Iterable[tuple[SentenceSpan, tuple[str, ...]]]:
    """The passages of a text, as spans of sentences, with their headings."""
    key, limit, short = f"{how.seed} {text.document.id}", how.max_tokens, how.short_span_probability
    if text.outline is not None:
        return text.outline.spans(tokens, limit, short, key)
    if text.name is not None:
        return [(SentenceSpan(0, len(tokens), sum(tokens) + SPECIAL_TOKENS), ())]
    return [(span, ()) for span in group(tokens, limit, short, key)]
