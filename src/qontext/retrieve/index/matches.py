"""Exact search over vectors of tokens where tokens are equal: the postings of a query's tokens, part by part."""

from __future__ import annotations

import torch

from qontext.retrieve.index import Array
from qontext.retrieve.index.exact import tensor_over
from qontext.retrieve.index.sparse import SparseIndex
from qontext.retrieve.postings import Postings


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
