"""Exact search over postings, part by part: those of a query's terms are added up.

sparse     s(q, p) = Σ_t  w_qt · w_pt                       learned weights of words
matches    s(q, p) = Σ_t  max_{j: p_j = t} <q_t, p_j>       vectors of tokens, where tokens are equal
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch

from qontext.models.packed import Packed
from qontext.retrieve.index import Array, How, Index
from qontext.retrieve.index.exact import tensor_over
from qontext.retrieve.index.flat import first
from qontext.retrieve.index.postings import Postings, postings_of
from qontext.retrieve.stored import Encoded


class SparseIndex(Index):
    """Postings in parts; `numbers` [P] are where each part's passages stand in `ids`. Passages without a word of the
    query are no results."""

    reads = "packed"
    tag = "sparse"
    none: ClassVar[float] = 0.0
    """The score of a passage that is no result."""

    def __init__(self, ids: Array, parts: Sequence[tuple[Array, Postings]]) -> None:
        self._ids, self.parts = ids, parts

    @classmethod
    def open(cls, encoded: Encoded, how: How) -> SparseIndex:
        return cls(encoded.ids, list(encoded.blocks()))

    @classmethod
    def of(cls, ids: Array, packed: Packed, terms: int) -> SparseIndex:
        """An index in memory; ids ascend."""
        return cls(ids, [(np.arange(len(ids)), postings_of(packed, terms))])

    @property
    def ids(self) -> Array:
        return self._ids

    @property
    def dimension(self) -> int:
        return len(self.parts[0][1].starts) - 1

    def search(self, queries: Packed, k: int, rows: Array | None = None) -> tuple[Array, Array]:
        k = min(k, len(self.ids))
        best = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        counts = np.zeros(len(queries), np.int64)
        assert queries.terms is not None
        spans = [slice(*span) for span in pairwise(queries.starts.tolist())]
        for numbers, postings in self.parts:
            searched = None if rows is None else rows[numbers]
            for q, span in enumerate(spans if k else ()):
                new = self.scores(postings, queries.terms[span].tolist(), queries.values[span])
                new = new if searched is None else np.where(searched, new, self.none)
                # A score that ties with the worst so far may still have the smaller number.
                hits = np.flatnonzero(new >= scores[q, -1] if counts[q] == k else new > self.none)
                if len(hits):
                    old = slice(counts[q])
                    top = first(
                        np.append(best[q, old], numbers[hits]), np.append(scores[q, old], new[hits]), k
                    )
                    counts[q] = len(top[0])
                    best[q, : counts[q]], scores[q, : counts[q]] = top
            self.advance(len(numbers))
        return best, scores

    @staticmethod
    def scores(postings: Postings, terms: list[int], weights: Array) -> Array:
        """[P] Σ weight in the query · weight in the passage, over the query's terms. Additions of torch take a fifth of
        the time of NumPy's."""
        total = torch.zeros(len(postings))
        for term, weight in zip(terms, weights.tolist()):
            places = slice(int(postings.starts[term]), int(postings.starts[term + 1]))
            rows, data = tensor_over(postings.rows[places]), tensor_over(postings.data[places])
            total.index_add_(0, rows.int(), data.float(), alpha=weight)  # a term names a passage once
        scores: Array = total.numpy()
        return scores


class MatchIndex(SparseIndex):
    """Postings of vectors. Passages without a token of the query are no results; scores may be negative."""

    tag = "matches"
    none = -torch.inf

    @staticmethod
    def scores(postings: Postings, terms: list[int], vectors: Array) -> Array:
        """[P] Σ over the query's terms of the greatest dot product with the term's vectors in the passage."""
        total, has_match = torch.zeros(len(postings)), torch.zeros(len(postings), dtype=torch.bool)
        for term, vector_D in zip(terms, torch.from_numpy(vectors).float()):
            places = slice(int(postings.starts[term]), int(postings.starts[term + 1]))
            rows = tensor_over(postings.rows[places]).long()
            products = tensor_over(postings.data[places]).float() @ vector_D
            best = torch.full((len(postings),), -torch.inf).scatter_reduce_(0, rows, products, "amax")
            is_here = best > -torch.inf
            total += best.where(is_here, torch.zeros(()))
            has_match |= is_here
        scores: Array = total.masked_fill(~has_match, -torch.inf).numpy()
        return scores
