"""Rows of different lengths in flat arrays: weights of words, or vectors of tokens.

Shapes: N rows, K entries of all rows, T tokens, D dimensions of an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Packed:
    """Row n has the entries from ``starts[n]`` to ``starts[n + 1]``."""

    starts: Array
    """[N + 1]"""
    values: Array
    """[K] weights, or [K, D] vectors."""
    terms: Array | None = None
    """[K] what is weighted."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Array:
        """[N] the rows' numbers of entries."""
        return np.diff(self.starts)

    def __getitem__(self, rows: slice) -> Packed:
        """Consecutive rows."""
        first, last, _ = rows.indices(len(self))
        starts = self.starts[first : max(first, last) + 1]
        entries = slice(int(starts[0]), int(starts[-1]))
        terms = None if self.terms is None else self.terms[entries]
        return Packed(starts - starts[0], self.values[entries], terms)

    def take(self, rows: Array) -> Packed:
        """These rows, in this order."""
        lengths = self.lengths[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.starts[rows] - starts[:-1], lengths) + np.arange(starts[-1])
        return Packed(starts, self.values[places], None if self.terms is None else self.terms[places])

    @classmethod
    def join(cls, parts: Sequence[Packed]) -> Packed:
        """The rows of all parts, one after the other."""
        starts = np.concatenate([[0], np.cumsum(np.concatenate([part.lengths for part in parts]))])
        terms = [part.terms for part in parts if part.terms is not None]
        values = np.concatenate([part.values for part in parts])
        return cls(starts, values, np.concatenate(terms) if terms else None)


def pack_own(tokens: Sequence[Any], vectors_NTD: Array, special: Sequence[int]) -> Packed:
    """The vectors of the texts' tokens that are not special. A text of special tokens alone keeps them, and one of no tokens
    has a vector of zeros."""
    are_own = [~np.isin(ids, special) for ids in tokens]
    are_own = [own if own.any() else ~own for own in are_own]
    nothing = np.zeros((1, vectors_NTD.shape[2]), np.float32)
    parts = [vectors[: len(own)][own] if len(own) else nothing for vectors, own in zip(vectors_NTD, are_own)]
    return Packed(np.cumsum([0, *map(len, parts)]), np.concatenate(parts))
