"""Exact search for a server: vectors are in memory in fp32, which saves converting all of them for every request, and few
queries are answered in one pass over them, without the padding of a matrix product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qontext.models.packed import Packed
from qontext.retrieve.index import Array, How, Index, StoredVectors
from qontext.retrieve.index.exact import ExactIndex
from qontext.retrieve.index.load import exact_index
from qontext.retrieve.index.scan import ScanIndex
from qontext.retrieve.index.windows import WindowIndex
from qontext.retrieve.packed import Windows
from qontext.retrieve.vectors import Vectors

LARGEST = 1 << 30
"""Bytes of vectors that are held."""
FEW = 8
"""Queries that one pass answers faster than a matrix product, which pads them to a multiple of so many."""


class HeldIndex(StoredVectors):
    """The results of `ExactIndex` or `WindowIndex`, up to rounding."""

    def __init__(self, vectors: Vectors | Windows) -> None:
        self.vectors = replace(vectors, parts=[_in_fp32(part) for part in vectors.parts])
        self._few, self._many = ScanIndex(self.vectors), exact_index(self.vectors, How(device="cpu"))

    def search(self, queries_QD: Array, k: int, rows: Array | None = None) -> tuple[Array, Array]:
        index = self._few if len(queries_QD) <= FEW else self._many
        return index.search(queries_QD, k, rows)


def held(index: Index) -> Index:
    """The index, in memory if it is exact, on a CPU and not too large."""
    if not isinstance(index, ExactIndex | WindowIndex) or index.device.type != "cpu":
        return index
    numbers = sum(_values(part).size for part in index.vectors.parts)
    return HeldIndex(index.vectors) if numbers * np.dtype(np.float32).itemsize <= LARGEST else index


def _in_fp32(part: Array | Packed) -> Array | Packed:
    values = np.array(_values(part), np.float32)
    return replace(part, values=values) if isinstance(part, Packed) else values


def _values(part: Array | Packed) -> Array:
    return part.values if isinstance(part, Packed) else part
