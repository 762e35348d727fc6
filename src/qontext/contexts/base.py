"""What contexts are drawn from, and what they are: stretches of the token stores."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from qontext.corpus.store import TokenStore
from qontext.errors import QontextError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Slices:
    """Stretches of text, as half-open ranges of a store's `ids`: of passages, or where `is_query` of queries."""

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
        """Row by row, one or the other."""
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
    """The passages, and their queries if there are any.

    `query_group` [passages] is each passage's group in the query store, -1 for none; `query_weights` [queries]
    makes some queries likelier than others. `max_tokens` bounds a context without its special tokens;
    `candidates` is how many of a passage's queries are drawn from, None for all.
    """

    passages: TokenStore
    max_tokens: int
    queries: TokenStore | None = None
    query_group: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    query_weights: NDArray[np.float64] | None = None
    candidates: int | None = None

    @functools.cached_property
    def query_cumulative(self) -> NDArray[np.float64]:
        """[queries + 1] running sum of the weights, to draw by."""
        assert self.query_weights is not None
        return np.concatenate([[0.0], np.cumsum(self.query_weights)])

    @functools.cached_property
    def query_counts(self) -> Ints:
        """[passages] how many queries each has to draw from."""
        assert self.queries is not None
        sizes = np.append(np.diff(self.queries.groups), 0)[self.query_group]
        return sizes if self.candidates is None else np.minimum(sizes, self.candidates)


def match_queries(passages: TokenStore, queries: TokenStore) -> Ints:
    """Each passage's group in the query store, by id; -1 for none. Queries of no passage are an error when all are."""
    names = pa.chunked_array([passages.names])
    found = pc.index_in(names, value_set=queries.names)
    groups = np.asarray(pc.fill_null(found, -1)).astype(np.int64)
    if (groups < 0).all():
        raise QontextError(
            f"no query belongs to any of these passages (queries name {queries.names[0]}, passages are like "
            f"{passages.names[0]})",
            remedy="Generate the queries from the same passages directory.",
        )
    return groups
