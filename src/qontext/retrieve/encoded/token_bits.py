"""A passage as one bit for each dimension of each of its tokens, which a query is compared with token by token.

    s(q, p) = mean_{i in q} max_{j in p} <e_i, sign(e_j)> / √D

Late interaction with an encoder of one vector: nothing has to be trained for it. A passage that is cut into windows has the
tokens of all of them, from the forward pass that makes their vectors. Its vector is an average over the tokens, in which
what one of them says is lost. The signs alone are enough, since the query keeps its numbers: 48 bytes for a token of 384
dimensions. Special tokens have no vector. It ranks the candidates of another search.

Shapes: I tokens of a query, J tokens of all passages, P passages, D dimensions, B bytes of a token's bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qontext.frame.errors import QontextError
from qontext.models.packed import Packed
from qontext.retrieve.encoded.packed import open_bits, take

if TYPE_CHECKING:
    from qontext.data.runs import Run

Array = np.ndarray[Any, Any]

TOKENS_AT_ONCE = 1 << 15
"""Tokens of passages that are numbers at the same time: 50 MB of them with 384 dimensions."""


def bits_of(vectors_JD: Array) -> Array:
    """[J, B] the signs of the vectors."""
    return np.packbits(vectors_JD > 0, axis=1)


def similarities(query_ID: Array, passages: Packed) -> Array:
    """[P] the similarity of a query to passages of bits."""
    starts, first, parts = passages.starts, 0, []
    while first < len(passages):
        # At least one passage, and no more tokens than fit.
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + TOKENS_AT_ONCE, "right")) - 1)
        parts.append(_of_some(query_ID, passages.values[starts[first] : starts[last]], starts[first:last]))
        first = last
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _of_some(query_ID: Array, bits_JB: Array, starts: Array) -> Array:
    greatest_IP = np.maximum.reduceat(_products(query_ID, bits_JB), starts - starts[0], axis=1)
    similarity_P: Array = greatest_IP.mean(0) / np.float32(np.sqrt(query_ID.shape[1]))
    return similarity_P


def _products(query_ID: Array, bits_JB: Array) -> Array:
    """[I, J] <e_i, sign(e_j)>."""
    are_positive_JD = np.unpackbits(bits_JB, axis=1, count=query_ID.shape[1]).astype(np.float32)
    # With signs s = 2b - 1: <e, s> = 2 <e, b> - Σ e.
    products_IJ: Array = 2 * (query_ID @ are_positive_JD.T) - query_ID.sum(1, keepdims=True)
    return products_IJ


class TokenBits:
    """The bits that `encode` wrote to `path`."""

    def __init__(self, path: Path | str) -> None:
        self.encoded = open_bits(path)

    def reranked(self, found: Run, queries: Sequence[Array], weight: float) -> Run:
        """The run with its scores and those by tokens fused. `queries` are the vectors [I, D] of the run's queries."""
        from qontext.data.runs import Run
        from qontext.retrieve.fuse import hybrid

        places = self._places(found.ids)
        ends = zip(queries, found.starts, found.starts[1:])
        scores = [similarities(q, take(self.encoded, places[found.codes[a:b]])) for q, a, b in ends]
        if not scores:
            return found
        rows = (found.row_queries(), found.queries, found.codes, found.ids)
        by_tokens = Run.from_codes(*rows, np.concatenate(scores).astype(np.float64))
        return hybrid([found, by_tokens], (1 - weight, weight), found.size)

    def products(self, query_ID: Array, id: str) -> Array:
        """[I, J] the similarity of each token of a query to each token of a passage."""
        bits_JB = take(self.encoded, self._places(np.array([id], object))).values
        return _products(query_ID, bits_JB) / np.float32(np.sqrt(query_ID.shape[1]))

    def _places(self, ids: Array) -> Array:
        """[P] where the passages with these ids stand."""
        own = self.encoded.ids
        numbers = np.minimum(np.searchsorted(own, ids), len(own) - 1)
        if (is_missing := own[numbers] != ids).any():
            raise QontextError(
                f"lacks the passage {ids[is_missing.argmax()]!r}",
                place=self.encoded.artifact.path,
                remedy="Encode the passages again.",
            )
        return self.encoded.places(numbers)
