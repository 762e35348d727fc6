"""Documents with headings → passages with their headings, page and lines. Each section is split separately,
so no passage extends into the next section or ends with its heading. Only a section that is shorter than a
quarter of the limit is joined with the next section, heading included, if both fit.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from qontext.corpus import spans as sentence_spans
from qontext.corpus.sentences import Splitter, by_code, shortened
from qontext.corpus.spans import SPECIAL_TOKENS, group
from qontext.data.places import SEPARATOR, Place, Span, common_prefix, joined
from qontext.data.records import Block

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
    ) -> Iterator[tuple[sentence_spans.Span, tuple[str, ...]]]:
        """The passages as spans of sentences, with their headings; `tokens` has the length of each sentence."""
        for number, (begin, end, path) in enumerate(self._stretches(tokens, max_tokens)):
            for span in group(tokens[begin:end], max_tokens, short, f"{key} {number}" if number else key):
                yield sentence_spans.Span(span.first + begin, span.last + begin, span.tokens), path

    def _stretches(self, tokens: list[int], max_tokens: int) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """(first sentence, sentence after the last, path) of each section; short ones are joined with the next."""
        stretch: tuple[int, int, int, tuple[str, ...]] | None = None
        for (heading, first, end), path in zip(self.sections, self.paths):
            if stretch is not None and sum(tokens[stretch[0] : end]) + SPECIAL_TOKENS <= max_tokens:
                shared = common_prefix([stretch[3], path])
                # A heading that is no longer in the path is kept in the text.
                stretch = (stretch[0], stretch[1] if shared == stretch[3] else stretch[0], end, shared)
            else:
                if stretch is not None:
                    yield stretch[1:]
                stretch = (heading, first, end, path)
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
            spans.append(Span(start - begin, block.headings[own:], block.page, line, last_line, block.cell))
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
            if result.starts[first:]:
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
