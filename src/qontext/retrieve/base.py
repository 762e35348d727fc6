"""The interface of searchers: BM25, vectors, or both fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qontext.data.places import Found, Place
from qontext.frame.errors import QontextError
from qontext.retrieve.snippets import snippet
from qontext.retrieve.system import System

if TYPE_CHECKING:
    from qontext.data.runs import Run
    from qontext.retrieve.where import Mask

CANDIDATES = 100
"""Minimum hits of each system for fusion."""


_NAMES = ("rank", "score", "passage", "document", "title", "text", "snippet")


@dataclass(frozen=True)
class Answer:
    """A passage with its rank and score; scores of different questions are not comparable. `place` is that of the
    passage's best sentence for the question, and `snippet` the text around it."""

    rank: int
    score: float
    passage: str
    document: str
    title: str
    text: str
    place: Place = field(default_factory=Place)
    snippet: str = ""

    @property
    def id(self) -> str:
        """The passage's id."""
        return self.passage

    def as_json(self) -> dict[str, Any]:
        """The answer as JSON, with its place as fields and as text."""
        fields = {name: getattr(self, name) for name in _NAMES}
        return {**fields, **self.place.as_json(), **({"place": str(self.place)} if str(self.place) else {})}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Answer:
        """The inverse of `as_json`."""
        place = {name: fields[name] for name in Place._fields if name in fields}
        place["headings"] = tuple(place.get("headings", ()))
        return cls(**{name: fields[name] for name in _NAMES}, place=Place(**place))


class BaseSearcher:
    """Answers questions with passages."""

    system: System
    weights: tuple[float, float]
    """The weights of BM25 and of the vectors, if both are used."""

    def __call__(self, question: str, k: int = 10, where: Sequence[str] = ()) -> list[Answer]:
        """The best k passages for the question."""
        return self.search(question, k, where)

    def search(self, question: str, k: int = 10, where: Sequence[str] = ()) -> list[Answer]:
        """The best k passages for the question. Conditions such as ``folder=guide`` restrict the search."""
        if not question.strip():
            raise QontextError("the question is empty")
        hits = self.run({"q": question}, k, where).get("q", [])
        passages = self._passages({hit.passage for hit in hits})
        words = self.lexical if self.system.words else None
        how: dict[str, Any] = {"analyzer": words.analyzer, "rarity": words.rarity} if words else {}
        answers = []
        for rank, hit in enumerate(hits, start=1):
            p, place, sentences = passages[hit.passage]
            shown = snippet(question, p.text, sentences, **how)
            answers.append(
                Answer(
                    rank,
                    round(hit.score, 6),
                    p.id,
                    p.doc,
                    p.title,
                    p.text,
                    place.within(p.text, shown.begin, shown.end),
                    shown.text,
                )
            )
        return answers

    def run(self, queries: Mapping[str, str], k: int = 10, where: Sequence[str] = ()) -> Run:
        """The best k passages of each query (id → text)."""
        runs = []
        if self.system.words:
            rows = self._rows(tuple(where), self.lexical)
            runs.append(self.lexical.search(queries, max(k, CANDIDATES), rows))
        if self.system.encoder is not None:
            runs.append(self._dense(queries, max(k, CANDIDATES), tuple(where)))
        found = self._fused(runs, max(k, CANDIDATES)) if len(runs) > 1 else runs[0]
        return self._reranked(queries, found).top(k)

    def _dense(self, queries: Mapping[str, str], k: int, where: tuple[str, ...]) -> Run:
        import numpy as np

        from qontext.data.runs import Run
        from qontext.retrieve.index import check_found

        encoder, index = self._dense_parts(len(queries))
        vectors = encoder.encode(list(queries.values()), "query")
        rows = self._rows(where, index)
        numbers, scores = check_found(index.search(vectors, k, rows), index, len(queries), k)
        there = numbers >= 0
        codes = np.broadcast_to(np.arange(len(queries))[:, None], there.shape)[there]
        return Run.from_codes(codes, list(queries), numbers[there], index.ids, scores[there])

    def _fused(self, runs: list[Run], k: int) -> Run:
        from qontext.retrieve.fuse import Rows

        return Rows(runs, "zscore", 60).fused(self.weights, k)

    def _reranked(self, queries: Mapping[str, str], found: Run) -> Run:
        """What was found, in the order of a more precise comparison, if there is one."""
        return found

    @property
    def lexical(self) -> Any:
        """The BM25 index."""
        raise NotImplementedError

    def _dense_parts(self, queries: int) -> tuple[Any, Any]:
        """The encoder and the index for this number of queries."""
        raise NotImplementedError

    def _rows(self, where: tuple[str, ...], index: Any) -> Mask | None:
        """Which passages of an index meet the conditions."""
        raise NotImplementedError

    def _passages(self, ids: set[str]) -> Mapping[str, Found]:
        raise NotImplementedError
