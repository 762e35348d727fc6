"""Exact search for a few queries in NumPy: one pass over the vectors, without importing torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from qontext.retrieve.index import Array, StoredVectors
from qontext.retrieve.vectors import Vectors

_BLOCK = 65_536


class ScanIndex(StoredVectors):
    """Search over an `encode` artifact; the same results as `ExactIndex`, up to rounding."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors

    def search(self, queries_QD: Array, k: int, rows: Array | None = None) -> tuple[Array, Array]:
        """([Q, k] numbers, [Q, k] scores), best first, ties by number; with `rows`, [P] bool, among these only."""
        best = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries_QD]
        for numbers, part in self.vectors.blocks():
            for start in range(0, len(part), _BLOCK):
                these = numbers[start : start + _BLOCK]
                block_BD = np.asarray(part[start : start + _BLOCK], np.float32)
                scores_QB = queries_QD @ block_BD.T
                if not np.isfinite(scores_QB.sum()):
                    is_finite: Any = np.isfinite(block_BD).all(axis=1)
                    self.vectors.check_rows(these, is_finite)
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


def first(numbers: Array, scores: Array, k: int) -> tuple[Array, Array]:
    """The best k of some passages, ties by number."""
    if len(scores) > k:
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        keep = scores >= least
        numbers, scores = numbers[keep], scores[keep]
    order = np.lexsort((numbers, -scores))[:k]
    return numbers[order], scores[order]
