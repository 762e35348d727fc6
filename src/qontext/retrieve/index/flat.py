"""Exact search in NumPy for a few queries: one pass over the vectors, without importing torch, which takes seconds."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from qontext.models.packed import Packed
from qontext.retrieve.index import Array, How, Index, StoredVectors
from qontext.retrieve.stored import Parted

_BLOCK = 65_536


class FlatIndex(StoredVectors):
    """Search over vectors of passages, or of their windows: up to `how.few` queries by a scan, more in blocks
    (`ExactIndex`). Both ways have the same results, up to rounding."""

    def __init__(self, vectors: Parted, how: How | None = None) -> None:
        self.vectors, self._how = vectors, how

    def search(self, queries_QD: Array, k: int, rows: Array | None = None) -> tuple[Array, Array]:
        if self._how is not None and len(queries_QD) > self._how.few:
            return self._blocked.search(queries_QD, k, rows)
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
        k = min(k, self.count if rows is None else int(rows.sum()))
        if not best:
            return np.empty((0, k), np.int64), np.empty((0, k), np.float32)
        return np.stack([numbers for numbers, _ in best]), np.stack([scores for _, scores in best])

    def _scores(self, queries_QD: Array, block: Array | Packed, numbers: Array) -> Array:
        """[Q, B] of the passages `numbers` [B]; of windows, the best one's."""
        vectors = np.asarray(block.values if isinstance(block, Packed) else block, np.float32)
        scores: Array = queries_QD @ vectors.T
        if not np.isfinite(scores.sum()):
            self.vectors.check_rows(numbers, block)
        return np.maximum.reduceat(scores, block.starts[:-1], axis=1) if isinstance(block, Packed) else scores

    @cached_property
    def _blocked(self) -> Index:
        from qontext.retrieve.index.exact import ExactIndex

        assert self._how is not None
        return ExactIndex.open(self.vectors, self._how)


def first(numbers: Array, scores: Array, k: int) -> tuple[Array, Array]:
    """The best k of some passages, ties by number."""
    if len(scores) > k:
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        keep = scores >= least
        numbers, scores = numbers[keep], scores[keep]
    order = np.lexsort((numbers, -scores))[:k]
    return numbers[order], scores[order]
