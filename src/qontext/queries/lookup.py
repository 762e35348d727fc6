"""Passages by their ids, while they stream: generated queries stand in passage order, and so are they read.

Nothing but the passages of one part of queries is held. Queries in another order are served, too, at the
price of one more pass over the passages for each of their parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from qontext.collection import Passage, read_passages
from qontext.corpus.seen import SeenIds
from qontext.errors import QontextError
from qontext.queries.words import batches


class Found(NamedTuple):
    """A passage's number in the collection, and its title and text as one."""

    number: int
    content: str


class Lookup:
    """The passages of a collection, each id once; `count` says how many they are."""

    def __init__(self, source: str) -> None:
        self.source, self.count = source, 0
        seen = SeenIds()
        for ids in batches((passage.id for passage in read_passages(source)), 16_384):
            if any(repeated := seen.repeated(ids)):
                raise QontextError(f"the passage id {ids[repeated.index(True)]!r} occurs twice", place=source)
            self.count += len(ids)
        if not self.count:
            raise QontextError("holds no passages", place=source)
        self._stream: Iterator[tuple[int, Passage]] = iter(())
        self._last: dict[str, Found] = {}

    def contents(self) -> Iterator[str]:
        """Titles and texts as one, in order."""
        return (passage.content for passage in read_passages(self.source))

    def find(self, ids: Iterable[str]) -> dict[str, Found]:
        """Those of the ids that are passages here, found from where the last search ended."""
        wanted = set(ids)
        found = {id: self._last[id] for id in wanted & self._last.keys()}
        for _ in range(self.count):
            if len(found) == len(wanted):
                break
            number, passage = self._next()
            if passage.id in wanted:
                found[passage.id] = Found(number, passage.content)
        self._last = found
        return found

    def _next(self) -> tuple[int, Passage]:
        following = next(self._stream, None)
        if following is None:
            self._stream = enumerate(read_passages(self.source))
            following = next(self._stream)
        return following
