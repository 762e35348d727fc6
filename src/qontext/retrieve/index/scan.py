"""Exact search for a few queries in NumPy: one pass over the vectors, without importing torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from qontext.models.packed import Packed
from qontext.retrieve.index import Array, StoredVectors
from qontext.retrieve.packed import Windows
from qontext.retrieve.vectors import Vectors

_BLOCK = 65_536


class ScanIndex(StoredVectors):
    """Search over an `encode` artifact; the same results as `ExactIndex` and `WindowIndex`, up to rounding."""

    def __init__(self, vectors: Vectors | Windows) -> None:
        self.vectors = vectors

    def search(self, queries_QD: Array, k: int, rows: Array | None = None) -> tuple[Array, Array]:
        """([Q, k] numbers, [Q, k] scores), best first, ties by number; with `rows`, [P] bool, among these only."""
        best = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries_QD]
        for numbers, part in self.vectors.blocks():
            for start in range(0, len(part), _BLOCK):
                these = numbers[start : start + _BLOCK]
                scores_QB = self._scores(queries_QD, part[start : start + _BLOCK], these)
                allowed = slice(None) if rows is None else rows[these]
                best = [
                    first(np.append(old, these[allowed]), np.append(old_scores, scores[allowed]), k)
                    for (old, old_scores), scores in zip(best, scores_QB)
                ]
        k = min(k, len(self.vectors) if rows is None else int(rows.sum()))
        nearest = np.full((len(queries_QD), k), -1, np.int64)
        scores = np.full((len(queries_QD), k), -np.inf, np.float32)
        for row, (numbers, own) in enumerate(best):
            nearest[row, : len(numbers)], scores[row, : len(numbers)] = numbers, own
        return nearest, scores

    def _scores(self, queries_QD: Array, block: Array | Packed, numbers: Array) -> Array:
        """[Q, B] of the passages `numbers` [B]; of windows, the best one's."""
        vectors = np.asarray(block.values if isinstance(block, Packed) else block, np.float32)
        scores: Array = queries_QD @ vectors.T
        if not np.isfinite(scores.sum()):
            is_finite: Any = np.isfinite(vectors).all(axis=1)
            if isinstance(block, Packed):
                is_finite = np.logical_and.reduceat(is_finite, block.starts[:-1])
            self.vectors.check_rows(numbers, is_finite)
        return np.maximum.reduceat(scores, block.starts[:-1], axis=1) if isinstance(block, Packed) else scores


def first(numbers: Array, scores: Array, k: int) -> tuple[Array, Array]:
    """The best k of some passages, ties by number."""
    if len(scores) > k:
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        keep = scores >= least
        numbers, scores = numbers[keep], scores[keep]
    order = np.lexsort((numbers, -scores))[:k]
    return numbers[order], scores[order]
