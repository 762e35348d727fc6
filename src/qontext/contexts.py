"""A passage's context, as a pure function of (passage, visit, seed): the second member of a training pair.

| name | rule |
|---|---|
| `near` | an adjacent passage, no overlap |
| `olap` | an adjacent span of text that shares sentences with the passage |
| `rand` | any other passage of the same document |
| `query` | one of the passage's queries |
| `a+b` | one of the named rules, drawn at every visit |
| `query+a+b` | queries at one step, one of the other rules at another, drawn at every step |

Query-as-context mixes per step ("in a training step", section 5.2); CoT-MAE mixes its three rules per pair.

For a passage A of a document with passages P₀ … Pₙ (CoT-MAE, section 3.2, without span corruption):

    near   uniform over { the passage before A, the passage after A }
    rand   uniform over { P₀ … Pₙ } \\ {A}
    olap   A's last n sentences and what follows, until full;  n uniform in 1 … max(1, S // 2), S = A's sentences;
           from the last passage, backwards: what precedes, and A's first n sentences
    query  P(q) = 1 / C over A's C queries, or ∝ w(q) with w from a filter's scores (query-as-context, section 3.1)

The only passage of a document has no neighbor: its context is the passage itself, masked differently.
In token stores a document's passages are contiguous, so each context is one slice; its title comes before it.

A rule is one function with the signature ``rule(sources, passages, visits, seed) -> Slices``, and one line in `RULES`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from qontext.corpus.store import TokenStore
from qontext.frame.errors import QontextError, choose
from qontext.training.randomness import below, uniform

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Slices:
    """Slices of text, as half-open ranges of the `ids` of the passage store or, where `is_query`, of the
    query store. Before a slice of passages stands the title of the one in which it begins."""

    begin: Ints
    end: Ints
    is_query: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.begin)

    def __getitem__(self, rows: Any) -> Slices:
        return Slices(self.begin[rows], self.end[rows], self.is_query[rows])

    @property
    def lengths(self) -> Ints:
        return self.end - self.begin

    @staticmethod
    def join(parts: list[Slices]) -> Slices:
        return Slices(
            np.concatenate([part.begin for part in parts]),
            np.concatenate([part.end for part in parts]),
            np.concatenate([part.is_query for part in parts]),
        )

    @staticmethod
    def where(condition: NDArray[np.bool_], yes: Slices, no: Slices) -> Slices:
        """Select rows from one or the other."""
        return Slices(
            np.where(condition, yes.begin, no.begin),
            np.where(condition, yes.end, no.end),
            np.where(condition, yes.is_query, no.is_query),
        )

    @staticmethod
    def of_passages(store: TokenStore, passages: Ints) -> Slices:
        return Slices(store.offsets[passages], store.offsets[passages + 1], np.zeros(len(passages), bool))


@dataclass(frozen=True)
class Sources:
    """The passages, and their queries, if any.

    `query_group` [passages] is each passage's group in the query store, -1 for none; `query_weights`
    [queries] are the sampling weights of queries. `max_tokens` bounds a context without its special tokens;
    `candidates` is the number of queries of a passage to draw from, None for all.
    """

    passages: TokenStore
    max_tokens: int
    queries: TokenStore | None = None
    query_group: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    query_weights: NDArray[np.float64] | None = None
    candidates: int | None = None

    def room(self, passages: Ints) -> Ints:
        """The number of tokens of a text that fit beside the title of each passage, at least half of `max_tokens`."""
        return self.max_tokens - np.minimum(self.passages.title_lengths[passages], self.max_tokens // 2)

    @functools.cached_property
    def query_cumulative(self) -> NDArray[np.float64]:
        """[queries + 1] cumulative sum of the weights."""
        assert self.query_weights is not None
        return np.concatenate([[0.0], np.cumsum(self.query_weights)])

    @functools.cached_property
    def query_counts(self) -> Ints:
        """[passages] the number of queries of each passage to draw from."""
        assert self.queries is not None
        sizes = np.append(np.diff(self.queries.groups), 0)[self.query_group]
        return sizes if self.candidates is None else np.minimum(sizes, self.candidates)


def match_queries(passages: TokenStore, queries: TokenStore) -> Ints:
    """Each passage's group in the query store, by id; -1 for none. It is an error if no query belongs to any
    passage."""
    names = pa.chunked_array([passages.names])
    index = pc.index_in(names, value_set=queries.names)
    groups = np.asarray(pc.fill_null(index, -1)).astype(np.int64)
    if (groups < 0).all():
        raise QontextError(
            f"no query belongs to any of these passages (queries name {queries.names[0]}, passages are like "
            f"{passages.names[0]})",
            remedy="Generate the queries from the same passages.",
        )
    return groups


def near(sources: Sources, passages: Ints, visits: Ints, seed: int) -> Slices:
    """An adjacent passage."""
    first, last = _document(sources, passages)
    after = below(2, seed, "near", passages, visits).astype(bool)
    after = np.where(passages == first, True, np.where(passages == last, False, after))
    neighbor = np.where(first == last, passages, passages + np.where(after, 1, -1))
    return Slices.of_passages(sources.passages, neighbor)


def rand(sources: Sources, passages: Ints, visits: Ints, seed: int) -> Slices:
    """Another passage of the document."""
    first, last = _document(sources, passages)
    other = first + below(last - first, seed, "rand", passages, visits)
    other += (other >= passages) & (first < last)
    return Slices.of_passages(sources.passages, other)


def olap(sources: Sources, passages: Ints, visits: Ints, seed: int) -> Slices:
    """A span that starts inside the passage and ends after it, or starts before the passage and ends inside it."""
    store, limit = sources.passages, sources.room(passages)
    offsets, sentences = store.offsets, store.sentences
    first, last = _document(sources, passages)
    begin, end = offsets[passages], offsets[passages + 1]
    low, high = (
        np.searchsorted(sentences, begin),
        np.searchsorted(sentences, end),
    )  # A's sentences, [low, high)
    shared = 1 + below(np.maximum(1, (high - low) // 2), seed, "olap", passages, visits)

    # Forwards: from A's last `shared` sentences to the last sentence end that fits.
    document_end = offsets[last + 1]
    from_here = sentences[np.maximum(high - shared, low)]
    cut = sentences[np.searchsorted(sentences, np.minimum(from_here + limit, store.offsets[-1]), "right") - 1]
    to_there = np.where(
        document_end <= from_here + limit, document_end, np.where(cut > end, cut, from_here + limit)
    )

    # Backwards: from the first sentence start that fits to the end of A's first `shared` sentences.
    document_begin = offsets[first]
    back_end = np.append(sentences, offsets[-1])[np.minimum(low + shared, high)]
    room = np.maximum(back_end - limit, 0)
    start = sentences[np.minimum(np.searchsorted(sentences, room), len(sentences) - 1)]
    back_begin = np.where(document_begin >= room, document_begin, np.where(start < begin, start, room))

    alone, backwards = first == last, passages == last
    return Slices(
        np.where(alone, begin, np.where(backwards, back_begin, from_here)),
        np.where(alone, end, np.where(backwards, back_end, to_there)),
        np.zeros(len(passages), bool),
    )


def _document(sources: Sources, passages: Ints) -> tuple[Ints, Ints]:
    """The first and the last passage of each passage's document."""
    store = sources.passages
    group = store.group_of[passages]
    return store.groups[group], store.groups[group + 1] - 1


def query(sources: Sources, passages: Ints, visits: Ints, seed: int) -> Slices:
    """A query of each passage; the passages must have one."""
    store = sources.queries
    assert store is not None
    counts, first = sources.query_counts[passages], store.groups[sources.query_group[passages]]
    assert (counts > 0).all(), "a passage without queries has no query context"
    dice = uniform(seed, "query", passages, visits)
    if sources.query_weights is None:
        number = first + (dice * counts).astype(np.int64)
    else:
        cumulative = sources.query_cumulative
        low, high = cumulative[first], cumulative[first + counts]
        number = np.searchsorted(cumulative, low + dice * (high - low), "right") - 1
        number = np.clip(number, first, first + counts - 1)
    return Slices(store.offsets[number], store.offsets[number + 1], np.ones(len(passages), bool))


RULES: dict[str, Callable[[Sources, Ints, Ints, int], Slices]] = {
    "near": near,
    "olap": olap,
    "rand": rand,
    "query": query,
}
ALIASES = {"mixed": "query+rand"}
"""Short names of mixtures."""
QUERY_SHARE = 0.5
"""Share of the steps whose contexts are queries, in a mixture with other rules."""


def rules_of(name: str) -> list[str]:
    """The rules of a context: one name, or several joined by +."""
    parts = ALIASES.get(name, name).split("+")
    return [choose(part, [*RULES, *ALIASES] if part == name else RULES, "context") for part in parts]


class Context:
    """A rule by name, or a mixture of rules."""

    def __init__(self, name: str, sources: Sources) -> None:
        self.sources, self.rules = sources, rules_of(name)
        if "query" in self.rules and sources.queries is None:
            raise QontextError(
                f"the context {name!r} needs queries",
                remedy="Pass --queries with the output of 'qontext generate'.",
            )
        self.only_queries = self.rules == ["query"]

    def draw(self, passages: Ints, visits: Ints, seed: int, step: int) -> Slices:
        """The contexts of these passages at these visits, in this step; an empty one is replaced by the passage itself."""
        slices = self._draw(passages, visits, seed, step)
        if (slices.lengths > 0).all():
            return slices
        return Slices.where(slices.lengths > 0, slices, Slices.of_passages(self.sources.passages, passages))

    def _draw(self, passages: Ints, visits: Ints, seed: int, step: int) -> Slices:
        others = [number for number, rule in enumerate(self.rules) if rule != "query"] or [0]
        rule_of = np.asarray(others)[below(len(others), seed, "rule", passages, visits)]
        if not self.only_queries and "query" in self.rules and uniform(seed, "queries", step) < QUERY_SHARE:
            has_query = self.sources.query_counts[passages] > 0
            rule_of = np.where(has_query, self.rules.index("query"), rule_of)
        rows = [np.flatnonzero(rule_of == i) for i in range(len(self.rules))]
        slices = [
            RULES[rule](self.sources, passages[r], visits[r], seed) for rule, r in zip(self.rules, rows)
        ]
        return Slices.join(slices)[np.argsort(np.concatenate(rows))]
