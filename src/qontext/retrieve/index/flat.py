"""Exact search, whatever the vectors: in NumPy for few queries, in one pass over the vectors and without importing torch
(`ScanIndex`); for more in blocked products on a CPU or GPU (`ExactIndex`, `WindowIndex`)."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from qontext.models.packed import Packed
from qontext.retrieve.encoded.packed import Windows
from qontext.retrieve.encoded.vectors import ArrayVectors, Vectors
from qontext.retrieve.index import Array, How, Index, StoredVectors

if TYPE_CHECKING:
    from qontext.retrieve.index.exact import ExactIndex, WindowIndex
_BLOCK = 65_536


class ScanIndex(StoredVectors):
    """Search over an `encode` artifact; the same results as `ExactIndex` and `WindowIndex`, up to rounding."""

    def __init__(self, vectors: Vectors | Windows | ArrayVectors) -> None:
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


LARGEST_IN_MEMORY = 1 << 30
"""Bytes of vectors that are read into memory."""


def exact_index(vectors: Vectors | Windows, how: How) -> Index:
    """The index over vectors of passages, or of their windows."""
    if not how.in_memory:
        return FlatIndex(vectors, how) if how.few else blocked_index(vectors, how)
    blocked = blocked_index(vectors, how)
    numbers = sum(_values(part).size for part in vectors.parts)
    if blocked.device.type != "cpu" or numbers * np.dtype(np.float32).itemsize > LARGEST_IN_MEMORY:
        return blocked
    return FlatIndex(replace(vectors, parts=[_in_fp32(part) for part in vectors.parts]), how)


def blocked_index(vectors: Vectors | Windows | ArrayVectors, how: How) -> ExactIndex | WindowIndex:
    """Exact search in blocks."""
    from qontext.retrieve.index.exact import ExactIndex, WindowIndex

    if isinstance(vectors, Windows):
        return WindowIndex.open(vectors, how)
    return ExactIndex.open(vectors, how)


class FlatIndex(StoredVectors):
    """Exact search that scans the vectors for up to `how.few` queries. Both ways have the same results, up to rounding."""

    def __init__(self, vectors: Vectors | Windows | ArrayVectors, how: How) -> None:
        self.vectors, self._how, self._scan = vectors, how, ScanIndex(vectors)

    def search(self, queries_QD: Array, k: int, rows: Array | None = None) -> tuple[Array, Array]:
        index = self._scan if len(queries_QD) <= self._how.few else self._blocked
        return index.search(queries_QD, k, rows)

    @cached_property
    def _blocked(self) -> Index:
        return blocked_index(self.vectors, self._how)


def _in_fp32(part: Array | Packed) -> Array | Packed:
    values = np.array(_values(part), np.float32)
    return replace(part, values=values) if isinstance(part, Packed) else values


def _values(part: Array | Packed) -> Array:
    return part.values if isinstance(part, Packed) else part
