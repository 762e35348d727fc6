"""Look up passages by id in a stream: generated queries are in passage order. Only the passages of one part
of queries are kept in memory. Queries in another order work, too, but need another pass over the passages for
each part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from qontext.data.collection import Passage, read_passages
from qontext.data.ids import SeenIds
from qontext.frame.errors import QontextError
from qontext.queries.words import batches


def joined(texts: Iterable[Passage | str], between: str | None) -> list[str]:
    """The texts as a model reads them; of a passage, title and text with `between` between them."""
    return [text if isinstance(text, str) else text.joined(between) for text in texts]


class NumberedPassage(NamedTuple):
    """A passage and its number in the collection."""

    number: int
    passage: Passage


class Lookup:
    """The passages of a collection, with unique ids; `count` is their number."""

    def __init__(self, source: str) -> None:
        self.source, self.count = source, 0
        seen_ids = SeenIds()
        for ids in batches((passage.id for passage in read_passages(source)), 16_384):
            if any(repeated := seen_ids.repeated(ids)):
                raise QontextError(f"the passage id {ids[repeated.index(True)]!r} occurs twice", place=source)
            self.count += len(ids)
        if not self.count:
            raise QontextError("contains no passages", place=source)
        self._stream: Iterator[tuple[int, Passage]] = iter(())
        self._last: dict[str, NumberedPassage] = {}

    def contents(self, between: str | None = " ") -> Iterator[str]:
        """Titles and texts in order, with `between` between them; None leaves out the titles."""
        return (passage.joined(between) for passage in read_passages(self.source))

    def find(self, ids: Iterable[str]) -> dict[str, NumberedPassage]:
        """The passages with these ids, searching from where the last lookup ended."""
        requested = set(ids)
        entries = {id: self._last[id] for id in requested & self._last.keys()}
        for _ in range(self.count):
            if len(entries) == len(requested):
                break
            number, passage = self._next()
            if passage.id in requested:
                entries[passage.id] = NumberedPassage(number, passage)
        self._last = entries
        return entries

    def _next(self) -> tuple[int, Passage]:
        following = next(self._stream, None)
        if following is None:
            self._stream = enumerate(read_passages(self.source))
            following = next(self._stream)
        return following
