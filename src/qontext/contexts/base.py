"""The sources of contexts, and contexts as slices of the token stores."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from qontext.corpus.store import TokenStore
from qontext.frame.errors import QontextError

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
