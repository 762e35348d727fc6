"""The ways of judging whether queries belong to their passages: each makes columns, `score` and `passed` among them.

A judge sees one part of queries at a time and gives it the same columns whatever the other parts are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qontext import records
from qontext.artifacts import Workdir
from qontext.errors import QontextError
from qontext.queries import signals
from qontext.queries.lookup import Lookup
from qontext.queries.words import READ_CHARACTERS, Array

if TYPE_CHECKING:
    from qontext.queries.filter import FilterConfig
    from qontext.queries.searchers import Dense, Lexical


class Part(NamedTuple):
    """N queries and the U passages that they belong to."""

    queries: list[str]
    owner: Array
    """[N] which of the U passages."""
    contents: list[str]
    numbers: Array
    """[U] the passages' numbers in the collection."""
    first: int
    """The number of the first query among all queries."""


Judge = Callable[[Part], dict[str, Array]]


def open_judge(config: FilterConfig, passages: Lookup, work: Workdir) -> Judge:
    """The judge that `--by` names; what it needs to know of the whole collection is made here."""
    if config.by == "overlap":
        return _by_overlap(config)
    if config.by == "reranker":
        return _by_reranker(config)
    retriever = open_retriever(config.retriever, config.device)
    forward = open_searcher(
        retriever, work, "passages", passages.contents(), passages.count, "passage", "query"
    )
    depth = max(config.depth, config.top)
    if config.by == "retrieval":
        return _by_rank(forward, depth, config.top)
    total = records.count_rows(config.queries)
    backward = open_searcher(retriever, work, "queries", _queries(config.queries), total, "query", "passage")
    return _by_both(forward, backward, depth, config.top)


def _by_overlap(config: FilterConfig) -> Judge:
    low = 0.4 if config.at_least is None else config.at_least

    def judge(part: Part) -> dict[str, Array]:
        shares = signals.overlap(part.queries, [part.contents[n] for n in part.owner.tolist()])
        return {
            "overlap": shares, "score": shares, "passed": (shares >= low) & (shares <= config.at_most)
        }  # fmt: skip

    return judge


def _by_reranker(config: FilterConfig) -> Judge:
    if config.reranker is None:
        raise QontextError("filtering by reranker needs a cross-encoder", remedy="Name it with --reranker.")
    reranker = open_reranker(config.reranker, config.device)
    low = 0.5 if config.at_least is None else config.at_least

    def judge(part: Part) -> dict[str, Array]:
        chance = signals.probabilities(
            reranker, part.queries, [part.contents[n] for n in part.owner.tolist()]
        )
        return {"rerank": chance, "score": chance, "passed": chance >= low}

    return judge


def _by_rank(forward: Lexical | Dense, depth: int, top: int) -> Judge:
    def judge(part: Part) -> dict[str, Array]:
        ranks = signals.rank(part.queries, part.numbers[part.owner], forward, depth)
        return {"rank": ranks, "score": reciprocal(ranks), "passed": (ranks > 0) & (ranks <= top)}

    return judge


def _by_both(forward: Lexical | Dense, backward: Lexical | Dense, depth: int, top: int) -> Judge:
    def judge(part: Part) -> dict[str, Array]:
        mine = np.arange(part.first, part.first + len(part.queries))
        ranks = signals.rank(known(backward, part.queries, mine), part.numbers[part.owner], forward, depth)
        own = np.bincount(part.owner, minlength=len(part.contents))
        asked = known(forward, [content[:READ_CHARACTERS] for content in part.contents], part.numbers)
        back = signals.back_ranks(asked, part.owner, part.first, backward, depth * own)
        of_passage = own[part.owner]
        returns = (back > 0) & (back <= top * of_passage)
        # Both ways count alike; a passage's best-placed own query has the full score.
        there, again = reciprocal(ranks), reciprocal(-(-back // of_passage))
        both = np.where((there > 0) & (again > 0), 2 * there * again / np.maximum(there + again, 1e-9), 0.0)
        return {
            "rank": ranks, "back_rank": back, "score": both.astype(np.float32),
            "passed": (ranks > 0) & (ranks <= top) & returns,
        }  # fmt: skip

    return judge


def open_retriever(name: str | None, device: str) -> Any:
    """A dense retriever; None stands for BM25."""
    if name is None:
        return None
    from qontext.retrieve.retriever import Retriever

    return Retriever(name, device=device)


def open_reranker(name: str, device: str) -> Any:
    """A cross-encoder."""
    from qontext.retrieve.cross_encoder import CrossEncoder

    return CrossEncoder(name, device=device)


def open_searcher(
    retriever: Any, work: Workdir, name: str, texts: Iterable[str], count: int, kind: str, asked: str
) -> Lexical | Dense:
    """BM25 over the texts, or their vectors as `kind`, to be searched with what is encoded as `asked`."""
    from qontext.queries.searchers import Dense, Lexical, encode_into

    if retriever is None:
        return Lexical(texts, count)
    return Dense(retriever, encode_into(work, name, retriever, texts, kind, count), asked)


def known(collection: Lexical | Dense, texts: list[str], numbers: Array) -> Any:
    """What to search for: texts, or their vectors where the collection that they stand in has them."""
    rows = getattr(collection, "rows", None)
    return texts if rows is None else rows.take(numbers)


def reciprocal(ranks: Array) -> Array:
    """1 for the first place, 1/2 for the second …, 0 for rank 0."""
    return np.where(ranks > 0, 1.0 / np.maximum(ranks, 1), 0.0).astype(np.float32)


def _queries(source: str) -> Iterator[str]:
    for batch in records.read_table(source, records.QUERIES, columns=["query"]):
        yield from batch["query"].to_pylist()
