"""The pairs of the annotators' study (appendix A of "Query-as-context Pre-training"): a passage of each drawn document, any
other passage of it, and one of the first one's queries, with automatic signals to compare people's judgments with.

Memory is a few bytes per passage; only the texts of the drawn pairs are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qontext.data import records
from qontext.data.collection import Passage, read_passages
from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.frame.files import hash64
from qontext.models.cross_encoder import CrossEncoder
from qontext.queries.filter import Lookup
from qontext.queries.judges import overlap, probabilities
from qontext.queries.searches import TextIndex
from qontext.queries.words import Array
from qontext.training.randomness import hashed

RELATED_OVERLAP, RELATED_RANK, RELATED_RERANK = 0.5, 10, 0.5
UNREAD = Passage("", "", "", "")
Drawn = tuple[str, str, str, dict[str, dict[str, bool]]]
"""A passage, another of its document, its query; and for each kind of pair, which signals call it related."""


@dataclass
class ScoredPair:
    """A passage and another of its document, each also by its number, and the `nth` of the passage's queries."""

    passage: int
    other: int
    nth: int
    own_text: Passage = UNREAD
    other_text: Passage = UNREAD
    query: str = ""


def drawn(config: Any) -> list[Drawn]:
    """The pairs of the study that these settings of `annotate` describe."""
    passages = Lookup(config.passages)
    pairs = draw_pairs(config.queries, config.passages, passages, config.documents, config.seed)
    if len(pairs) < config.documents:
        log.note(f"Only {len(pairs)} documents have two passages and a query.")
    anchors, targets = [pair.own_text for pair in pairs], np.array([pair.passage for pair in pairs])
    index = TextIndex.lexical((p.content for p in read_passages(config.passages)), passages.count)
    others, hide = [pair.other_text for pair in pairs], np.array([pair.other for pair in pairs])
    reranker = config.reranker and CrossEncoder(config.reranker, device=config.device)
    of_kinds = {
        "passage-passage": signals(others, anchors, targets, index, hide, reranker),
        "passage-query": signals([pair.query for pair in pairs], anchors, targets, index, None, reranker),
    }
    return [
        (
            pair.own_text.content,
            pair.other_text.content,
            pair.query,
            {kind: {name: bool(values[n]) for name, values in of.items()} for kind, of in of_kinds.items()},
        )
        for n, pair in enumerate(pairs)
    ]


def draw_pairs(
    queries_path: str, passages_path: str, passages: Lookup, documents: int, seed: int
) -> list[ScoredPair]:
    """At most `documents` pairs, each of a different document, drawn with the seed."""
    queries = _count_queries(queries_path, passages)
    members, spans = _documents(passages_path, queries)
    if len(spans) < 10:
        raise QontextError(
            f"only {len(spans)} documents have two passages and a query", place=queries_path,
            remedy="Check that queries and passages belong together; the column doc of the passages names the document.",
        )  # fmt: skip
    chance = hashed(seed, "relevance", np.arange(len(spans))[:, None], np.arange(4)[None, :])
    pairs = []
    for n in np.argsort(chance[:, 0], kind="stable")[:documents].tolist():
        mine = members[slice(*spans[n])]
        with_queries = mine[queries[mine] > 0]
        passage = with_queries[int(chance[n, 1] % np.uint64(len(with_queries)))]
        rest = mine[mine != passage]
        other = rest[int(chance[n, 2] % np.uint64(len(rest)))]
        pairs.append(ScoredPair(int(passage), int(other), int(chance[n, 3] % np.uint64(queries[passage]))))
    _fill_in(queries_path, passages_path, pairs)
    return pairs


def _count_queries(source: str, passages: Lookup) -> Array:
    """[P] the number of queries of each passage."""
    counts = np.zeros(passages.count, np.int32)
    for ids, _ in _query_batches(source):
        entries = passages.find(ids)
        np.add.at(counts, [entries[id].number for id in ids if id in entries], 1)
    return counts


def _documents(source: str, queries: Array) -> tuple[Array, Array]:
    """The passages' numbers, document by document, and from where to where each document's stand among them;
    of those documents that have two passages and a query, in their order."""
    codes = np.fromiter((hash64(passage.doc) for passage in read_passages(source)), np.uint64, len(queries))
    _, first, document, sizes = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
    has_queries = np.bincount(document, weights=queries) > 0
    ends = np.cumsum(sizes)
    good = np.flatnonzero((sizes > 1) & has_queries)
    good = good[np.argsort(first[good])]
    return np.argsort(document, kind="stable"), np.stack([ends - sizes, ends], 1)[good]


def _fill_in(queries_path: str, passages_path: str, pairs: list[ScoredPair]) -> None:
    """The texts of the drawn pairs, from one more pass over passages and queries."""
    numbers = {number for pair in pairs for number in (pair.passage, pair.other)}
    passages = {n: p for n, p in enumerate(read_passages(passages_path)) if n in numbers}
    waiting = {}
    for pair in pairs:
        pair.own_text, pair.other_text = passages[pair.passage], passages[pair.other]
        waiting[passages[pair.passage].id] = pair
    counts = dict.fromkeys(waiting, 0)
    for ids, texts in _query_batches(queries_path):
        for id, text in zip(ids, texts):
            if id in counts:
                if counts[id] == waiting[id].nth:
                    waiting[id].query = text
                counts[id] += 1


def _query_batches(source: str) -> Iterator[tuple[list[str], list[str]]]:
    for batch in records.read_table(source, records.QUERIES, columns=["passage", "query"]):
        yield batch["passage"].to_pylist(), batch["query"].to_pylist()


def signals(
    texts: Sequence[Passage | str],
    anchors: Sequence[Passage],
    targets: Array,
    index: TextIndex,
    hide: Array | None,
    reranker: Any,
) -> dict[str, Array]:
    """[N] of true and false for each signal: whether a text belongs to its anchor, the passage with the number `targets[n]`.
    `hide[n]` is the number of the text itself, which no search finds."""
    contexts = [text if isinstance(text, str) else text.content for text in texts]
    pairs = [*zip(contexts, (anchor.content for anchor in anchors))]
    numbers = index.top(contexts, RELATED_RANK + (hide is not None))
    live = numbers >= 0 if hide is None else (numbers >= 0) & (numbers != hide[:, None])
    found = live & (numbers == targets[:, None]) & (live.cumsum(axis=1) <= RELATED_RANK)
    signals = {
        f"overlap ≥ {RELATED_OVERLAP:g}": overlap(pairs) >= RELATED_OVERLAP,
        f"BM25 finds the passage, top {RELATED_RANK}": found.any(axis=1),
    }
    if reranker is not None:
        between = reranker.titles.between
        read = [text if isinstance(text, str) else text.joined(between) for text in texts]
        chances = probabilities(reranker, [*zip(read, (anchor.joined(between) for anchor in anchors))])
        signals[f"reranker ≥ {RELATED_RERANK:g}"] = chances >= RELATED_RERANK
    return signals
