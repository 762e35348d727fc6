"""Approximate search with faiss: a graph (HNSW), or inverted lists of compressed vectors (IVF-PQ).

Shapes: P passages, Q queries, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qontext.artifacts import Workdir
from qontext.errors import QontextError, missing_extra
from qontext.retrieve.index import Array
from qontext.retrieve.vectors import Vectors, read_ids

if TYPE_CHECKING:
    from qontext.retrieve.index.build import IndexConfig

FILE, NUMBERS = "index.faiss", "numbers.npy"
_TRAINING_PER_LIST = 64


class FaissIndex:
    """A faiss index and, for each of its rows, the passage's number."""

    def __init__(self, index: Any, numbers_P: Array, ids: Array) -> None:
        self.index, self._numbers, self._ids = index, numbers_P, ids

    @property
    def dimension(self) -> int:
        return int(self.index.d)

    @property
    def ids(self) -> Array:
        return self._ids

    def search(self, queries_QD: Array, k: int) -> tuple[Array, Array]:
        scores, rows = self.index.search(
            np.ascontiguousarray(queries_QD, np.float32), min(k, self.index.ntotal)
        )
        numbers = np.where(rows >= 0, self._numbers[rows], -1)
        order = np.lexsort((numbers, -scores), axis=1)
        return np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)


def build(vectors: Vectors, work: Workdir, config: IndexConfig, advance: Callable[[int], None]) -> None:
    faiss = _faiss()
    index = (
        _hnsw(faiss, vectors, config) if config.backend == "faiss-hnsw" else _ivfpq(faiss, vectors, config)
    )
    for _, part in vectors.blocks():
        for start in range(0, len(part), 16_384):
            rows = np.asarray(part[start : start + 16_384], np.float32)
            index.add(rows)
            advance(len(rows))
    with work.write(FILE) as path:
        faiss.write_index(index, str(path))
    with work.write(NUMBERS) as path, path.open("wb") as file:
        np.save(file, np.concatenate(vectors.part_numbers), allow_pickle=False)


def load(folder: Path) -> FaissIndex:
    faiss = _faiss()
    try:
        index = faiss.read_index(str(folder / FILE))
        numbers = np.load(folder / NUMBERS, allow_pickle=False)
    except (RuntimeError, OSError, ValueError) as error:
        raise QontextError(
            f"not a readable faiss index: {str(error).splitlines()[0]}", place=folder
        ) from None
    ids = read_ids(folder)
    if not len(ids) == len(numbers) == index.ntotal:
        raise QontextError(f"holds {index.ntotal} vectors and {len(ids)} ids", place=folder)
    return FaissIndex(index, numbers, ids)


def _hnsw(faiss: Any, vectors: Vectors, config: IndexConfig) -> Any:
    index = faiss.IndexHNSWFlat(vectors.dimension, config.neighbours, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = index.hnsw.efSearch = config.effort
    return index


def _ivfpq(faiss: Any, vectors: Vectors, config: IndexConfig) -> Any:
    if vectors.dimension % config.code_bytes:
        raise QontextError(
            f"--code-bytes {config.code_bytes} does not divide the {vectors.dimension} dimensions of the vectors"
        )
    lists = min(config.lists or int(4 * math.sqrt(len(vectors))), max(1, len(vectors) // 39))
    if len(vectors) < 256:
        raise QontextError(
            f"{len(vectors)} vectors are too few to learn a compression from (256 at least)",
            place=vectors.artifact.path,
            remedy="Search the vectors themselves: that is exact, and fast at this size.",
        )
    flat = faiss.IndexFlatIP(vectors.dimension)
    index = faiss.IndexIVFPQ(flat, vectors.dimension, lists, config.code_bytes, 8, faiss.METRIC_INNER_PRODUCT)
    index.train(_sample(vectors, max(lists * _TRAINING_PER_LIST, 256 * _TRAINING_PER_LIST)))
    index.nprobe = min(config.probes, lists)
    return index


def _sample(vectors: Vectors, wanted: int) -> Array:
    """Evenly spaced rows of all parts, in fp32."""
    step = max(1, len(vectors) // wanted)
    return np.concatenate([np.asarray(part[::step], np.float32) for part in vectors.parts])


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise missing_extra("faiss-cpu", "ann", "a faiss index") from None
    return faiss
