"""Approximate search with faiss: a graph, inverted lists, quantization, whatever `faiss.index_factory` builds.

Shapes: P passages, Q queries, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from qontext.frame import config
from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.errors import QontextError, missing_extra
from qontext.frame.files import damaged, opening, read_array, require_regular
from qontext.retrieve.index import Array, Backend, Index
from qontext.retrieve.stored import Encoded, read_ids, save_array

FILE, NUMBERS = "index.faiss", "numbers.npy"
_SAMPLE = 1 << 18
"""Vectors from which a compression and lists are learned, at most."""


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
        k = min(k, self.index.ntotal if rows is None else int(rows.sum()))
        if not k:
            return np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
        index, how = self.index, None
        if rows is not None:
            index, how = _among(_faiss(), index, np.packbits(rows[self._numbers], bitorder="little"))
        scores, places = index.search(queries, k, params=how)
        numbers = np.where(places >= 0, self._numbers[places], -1)
        order = np.lexsort((numbers, -scores), axis=1)
        return np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)


def _among(faiss: Any, index: Any, bits: Array) -> tuple[Any, Any]:
    """The index, and parameters with which it compares all places of these bits: a graph or a few lists may not lead to
    them."""
    index, selector = faiss.downcast_index(index), faiss.IDSelectorBitmap(bits)
    if hasattr(index, "hnsw"):
        return faiss.downcast_index(index.storage), faiss.SearchParameters(sel=selector)
    if isinstance(index, faiss.IndexRefine):
        how = _among(faiss, index.base_index, bits)[1]
        return index, faiss.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=how)
    if isinstance(index, faiss.IndexPreTransform):
        how = _among(faiss, index.index, bits)[1]
        return index, faiss.SearchParametersPreTransform(index_params=how)
    if isinstance(index, faiss.IndexIVF):
        return index, faiss.SearchParametersIVF(sel=selector, nprobe=index.nlist)
    return index, faiss.SearchParameters(sel=selector)


class FaissOptions(config.Options):
    factory: str = "HNSW32"
    """The index in the language of faiss.index_factory: HNSW32 (a graph), IVF4096,PQ48 (lists of compressed vectors),
    SQ8,RFlat (8 bits per dimension, the best scored again), RaBitQ,RFlat (1 bit)."""

    parameters: str = ""
    """Parameters of building and search in the language of faiss.ParameterSpace, such as efSearch=200, nprobe=32 or
    k_factor_rf=4 (candidates per result that are scored again)."""


class Faiss(Backend):
    """An index that is trained on a sample, and filled block by block."""

    Options: ClassVar[type[config.Options]] = FaissOptions

    @classmethod
    def recipe(cls, vectors: Encoded, options: Any) -> tuple[str, str]:
        """The factory string and the parameters."""
        return options.factory, options.parameters

    @classmethod
    def build(cls, source: Encoded, work: Workdir, options: Any, advance: Callable[[int], None]) -> int:
        faiss = _faiss()
        factory, parameters = cls.recipe(source, options)
        try:
            index = faiss.index_factory(source.dimension, factory, faiss.METRIC_INNER_PRODUCT)
            if parameters:
                faiss.ParameterSpace().set_index_parameters(index, parameters)
            if not index.is_trained:
                step = max(1, len(source) // _SAMPLE)
                index.train(np.concatenate([np.asarray(part[::step], np.float32) for part in source.parts]))
        except RuntimeError as error:
            raise QontextError(f"faiss cannot build {factory!r}: {error}") from None
        for _, part in source.blocks():
            for start in range(0, len(part), 16_384):
                rows = np.asarray(part[start : start + 16_384], np.float32)
                index.add(rows)
                advance(len(rows))
        with work.write(FILE) as path:
            faiss.write_index(index, str(path))
        save_array(work, NUMBERS, np.concatenate(source.part_numbers))
        return len(source)

    @classmethod
    def load(cls, artifact: Artifact) -> FaissIndex:
        faiss, folder = _faiss(), artifact.path
        require_regular(folder / FILE)
        with opening(folder / FILE, "a readable faiss index"):
            index = faiss.read_index(str(folder / FILE), faiss.IO_FLAG_MMAP_IFC)
        ids = read_ids(folder)
        numbers = read_array(folder / NUMBERS, "i", shape=(len(ids),), mapped=False)
        if index.ntotal != len(ids):
            raise damaged(folder / FILE, f"it holds {index.ntotal:,} vectors for {len(ids):,} ids")
        return FaissIndex(index, numbers, ids)


class HnswOptions(config.Options):
    neighbors: int = Field(32, ge=2)
    """Links per vector (M). More: higher recall, slower and larger."""

    effort: int = Field(200, ge=1)
    """Candidates per vector while building (efConstruction) and per query while searching (efSearch)."""


class Hnsw(Faiss):
    """A graph of neighbors."""

    Options = HnswOptions

    @classmethod
    def recipe(cls, vectors: Encoded, options: Any) -> tuple[str, str]:
        return f"HNSW{options.neighbors}", f"efConstruction={options.effort},efSearch={options.effort}"


class IvfPqOptions(config.Options):
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
    def recipe(cls, vectors: Encoded, options: Any) -> tuple[str, str]:
        most = max(1, len(vectors) // 39)  # faiss wants that many for each list
        lists = min(options.lists or int(4 * math.sqrt(len(vectors))), most)
        # np: no polysemous training, a slow search for codes that nothing here reads.
        return f"IVF{lists},PQ{options.code_bytes}np", f"nprobe={min(options.probes, lists)}"


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise missing_extra("faiss-cpu", "ann", "a faiss index") from None
    return faiss
