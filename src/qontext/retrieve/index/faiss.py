"""Approximate search with faiss: a graph (HNSW), or inverted lists of compressed vectors (IVF-PQ).

Shapes: P passages, Q queries, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import Field

from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.config import Options
from qontext.frame.errors import QontextError, missing_extra
from qontext.frame.files import damaged, opening, read_array, require_regular
from qontext.retrieve.encoded.vectors import Vectors, read_ids
from qontext.retrieve.index import Array, Backend, Index

FILE, NUMBERS = "index.faiss", "numbers.npy"
_TRAINING_PER_LIST = 64


class FaissIndex(Index):
    """A faiss index and, for each of its rows, the passage's number."""

    def __init__(self, index: Any, numbers_P: Array, ids: Array) -> None:
        self.index, self._numbers, self._ids = index, numbers_P, ids

    @property
    def dimension(self) -> int:
        return int(self.index.d)

    @property
    def ids(self) -> Array:
        return self._ids

    def search(self, queries_QD: Array, k: int, rows: Array | None = None) -> tuple[Array, Array]:
        queries = np.ascontiguousarray(queries_QD, np.float32)
        if rows is None:
            scores, places = self.index.search(queries, min(k, self.index.ntotal))
        else:
            scores, places = self._among(queries, min(k, int(rows.sum())), rows[self._numbers])
        numbers = np.where(places >= 0, self._numbers[places], -1)
        order = np.lexsort((numbers, -scores), axis=1)
        return np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)

    def _among(self, queries_QD: Array, k: int, chosen_P: Array) -> tuple[Array, Array]:
        """The best of some places, all of which are compared: a graph or a few cells may not lead to them."""
        if not k:
            return np.empty((len(queries_QD), 0), np.float32), np.empty((len(queries_QD), 0), np.int64)
        faiss = _faiss()
        bits = np.packbits(chosen_P, bitorder="little")
        selector = faiss.IDSelectorBitmap(bits)
        index = faiss.downcast_index(self.index)
        if hasattr(index, "hnsw"):
            index, parameters = faiss.downcast_index(index.storage), faiss.SearchParameters(sel=selector)
        else:
            parameters = faiss.SearchParametersIVF(sel=selector, nprobe=index.nlist)
        scores, places = index.search(queries_QD, k, params=parameters)
        return scores, places


class Faiss(Backend):
    """The base of both kinds: an empty index to begin with, filled block by block."""

    @classmethod
    def empty(cls, faiss: Any, vectors: Vectors, options: Any) -> Any:
        """The index, trained if it needs that, without vectors."""
        raise NotImplementedError

    @classmethod
    def build(cls, source: Vectors, work: Workdir, options: Any, advance: Callable[[int], None]) -> int:
        faiss = _faiss()
        index = cls.empty(faiss, source, options)
        for _, part in source.blocks():
            for start in range(0, len(part), 16_384):
                rows = np.asarray(part[start : start + 16_384], np.float32)
                index.add(rows)
                advance(len(rows))
        with work.write(FILE) as path:
            faiss.write_index(index, str(path))
        with work.write(NUMBERS) as path, path.open("wb") as file:
            np.save(file, np.concatenate(source.part_numbers), allow_pickle=False)
        return len(source)

    @classmethod
    def load(cls, artifact: Artifact) -> FaissIndex:
        faiss, folder = _faiss(), artifact.path
        require_regular(folder / FILE)
        with opening(folder / FILE, "a readable faiss index"):
            index = faiss.read_index(str(folder / FILE))
        ids = read_ids(folder)
        numbers = read_array(folder / NUMBERS, "i", shape=(len(ids),), mapped=False)
        if index.ntotal != len(ids):
            raise damaged(folder / FILE, f"it holds {index.ntotal:,} vectors for {len(ids):,} ids")
        if len(ids) and not 0 <= numbers.min() <= numbers.max() < len(ids):
            raise damaged(folder / NUMBERS, f"its numbers are not below {len(ids):,}")
        return FaissIndex(index, numbers, ids)


class HnswOptions(Options):
    neighbors: int = Field(32, ge=2)
    """Links per vector (M). More: higher recall, slower and larger."""

    effort: int = Field(200, ge=1)
    """Candidates per vector while building (efConstruction) and per query while searching (efSearch)."""


class Hnsw(Faiss):
    """A graph of neighbors."""

    Options = HnswOptions

    @classmethod
    def empty(cls, faiss: Any, vectors: Vectors, options: HnswOptions) -> Any:
        index = faiss.IndexHNSWFlat(vectors.dimension, options.neighbors, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = index.hnsw.efSearch = options.effort
        return index


class IvfPqOptions(Options):
    lists: int | None = Field(None, ge=1)
    """Cells into which vectors are sorted; by default four times the root of their number."""

    probes: int = Field(32, ge=1)
    """Cells that a query looks into."""

    code_bytes: int = Field(64, ge=1)
    """Bytes to which a vector is compressed; a divisor of its dimensions."""


class IvfPq(Faiss):
    """Inverted lists of compressed vectors."""

    Options = IvfPqOptions

    @classmethod
    def empty(cls, faiss: Any, vectors: Vectors, options: IvfPqOptions) -> Any:
        if vectors.dimension % options.code_bytes:
            raise QontextError(
                f"--code-bytes {options.code_bytes} does not divide the {vectors.dimension} dimensions of the vectors"
            )
        lists = min(options.lists or int(4 * math.sqrt(len(vectors))), max(1, len(vectors) // 39))
        if len(vectors) < 256:
            raise QontextError(
                f"{len(vectors)} vectors are too few to learn a compression from (256 at least)",
                place=vectors.artifact.path,
                remedy="Search the vectors themselves: that is exact, and fast at this size.",
            )
        flat, measure = faiss.IndexFlatIP(vectors.dimension), faiss.METRIC_INNER_PRODUCT
        index = faiss.IndexIVFPQ(flat, vectors.dimension, lists, options.code_bytes, 8, measure)
        index.train(_sample(vectors, max(lists * _TRAINING_PER_LIST, 256 * _TRAINING_PER_LIST)))
        index.nprobe = min(options.probes, lists)
        return index


def _sample(vectors: Vectors, count: int) -> Array:
    """Evenly spaced rows of all parts, in fp32."""
    step = max(1, len(vectors) // count)
    return np.concatenate([np.asarray(part[::step], np.float32) for part in vectors.parts])


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise missing_extra("faiss-cpu", "ann", "a faiss index") from None
    return faiss
