"""Questions, and sub-queries of one, whose rankings are fused; hits by document instead of by passage.

words:          searched by BM25 alone
meaning:        searched by vectors alone
hypothetical:   an answer as it might be written, whose vector is that of a passage (Gao et al., 2022)

Agents write them themselves, a line each. A line without such a word is a question to the whole system.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from qontext.frame.errors import QontextError
from qontext.retrieve.rankers import CANDIDATES, Among, Ranker

if TYPE_CHECKING:
    from qontext.data.runs import Run

By = Literal["words", "meaning", "hypothetical"]
GroupBy = Literal["passage", "document"]
DEEPER = 4
"""Times as many passages as documents that are asked for."""
_LINE = re.compile(rf"\s*({'|'.join(get_args(By))}):\s*(\S.*)", re.IGNORECASE | re.DOTALL)


class SubQuery(NamedTuple):
    """A text to search for, and by which part of the system; None for the whole."""

    text: str
    by: By | None = None


def parse(question: str) -> list[SubQuery]:
    """The sub-queries of a question: one of each line, if any line begins with ``words:``, ``meaning:`` or
    ``hypothetical:``; else the question itself.

    >>> parse("words: flour price\\nhypothetical: Flour costs two coins.")
    [SubQuery(text='flour price', by='words'), SubQuery(text='Flour costs two coins.', by='hypothetical')]
    """
    lines = [line for line in question.splitlines() if line.strip()]
    matches = [_LINE.fullmatch(line) for line in lines]
    if not any(matches):
        return [SubQuery(question)]
    return [
        SubQuery(line.strip()) if match is None else SubQuery(match[2].strip(), match[1].lower())  # type: ignore[arg-type]
        for line, match in zip(lines, matches)
    ]


def text_of(question: str) -> str:
    """The words of all sub-queries, for what is shown of a passage."""
    return " ".join(sub.text for sub in parse(question))


class NoSuchPart(QontextError):
    """A question that needs a part that the system does not have."""


class SystemParts(NamedTuple):
    """The parts of a system, opened when a question needs them; None if there is no such part."""

    whole: Callable[[], Ranker]
    words: Callable[[], Ranker] | None
    meaning: Callable[[], Ranker] | None

    @classmethod
    def of(cls, collection: Any) -> SystemParts:
        """Those of a directory of `adapt`, or of passages in memory."""
        meaning = None if collection.system.encoder is None else lambda: collection.dense
        return cls(collection.ranker, lambda: collection.words, meaning)

    def ranker(self, by: By | None) -> Ranker:
        """The part that answers such a sub-query."""
        part = self.whole if by is None else self.words if by == "words" else self.meaning
        if part is None:
            kind = "words" if by == "words" else "vectors"
            raise NoSuchPart(
                f"{by}: needs an index of {kind}, which this system does not have", remedy="Ask without it."
            )
        return part()


def rank(parts: SystemParts, queries: Mapping[str, str], k: int, among: Among) -> Run:
    """The best k passages of each question (id → text), of which some have sub-queries."""
    from qontext.data.runs import Run

    asked = {query: parse(text) for query, text in queries.items()}
    plain = {query: subs[0].text for query, subs in asked.items() if len(subs) == 1 and subs[0].by is None}
    run = parts.whole().rank(plain, k, among=among) if plain else Run.of([])
    if len(plain) == len(queries):
        return run
    hits = [hit for query in run for hit in run[query]]
    for query, subs in asked.items():
        if query not in plain:
            hits += _fused(parts, query, subs, k, among).get(query, [])
    return Run.of(hits)


def _fused(parts: SystemParts, query: str, subs: Sequence[SubQuery], k: int, among: Among) -> Run:
    """The rankings of sub-queries with equal weights, each in standard deviations of its hits."""
    from qontext.retrieve.fuse import hybrid

    runs = []
    for sub in subs:
        ranker = parts.ranker(sub.by)
        kind: Any = "passage" if sub.by == "hypothetical" else "query"
        runs.append(ranker.rank({query: sub.text}, max(k, CANDIDATES), kind=kind, among=among))
    return hybrid(runs, [1 / len(runs)] * len(runs), k)


def by_document(run: Run, document_of: Callable[[str], str], k: int, *, renamed: bool = False) -> Run:
    """The best passage of each document, in the order of the passages, or, `renamed`, the document itself; at most k of each
    query."""
    from qontext.data.records import Hit
    from qontext.data.runs import Run

    hits = []
    for query in run:
        seen: set[str] = set()
        for hit in run[query]:
            document = document_of(hit.passage)
            if document not in seen and len(seen) < k:
                seen.add(document)
                hits.append(Hit(query, document, hit.score) if renamed else hit)
    return Run.of(hits)
