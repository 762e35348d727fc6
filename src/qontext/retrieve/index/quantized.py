"""Exact search's small sibling: every passage is compared by an 8-bit or 1-bit code, and the best ones by their vectors.

    int8    s'(q, p) = Σ_d q_d · a_d · c_pd         c_pd = round(p_d / a_d) in -127 … 127,  a_d = max_p |p_d| / 127
    binary  s'(q, p) = Σ_d q_d · sign(p_d)
    the best `oversample` · k passages by s' are scored again by s(q, p) = <q, p>

Codes take a quarter or a 32nd of the vectors' memory. The vectors are on disk, and of them only those of the candidates
are read. (Yamada et al. 2021 for binary codes with rescoring; there, the first pass compares signs with signs.)

Shapes: P passages, Q queries, D dimensions, B passages of a block, C candidates, K bytes of a code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.config import Options
from qontext.frame.errors import QontextError
from qontext.frame.files import read_array
from qontext.retrieve.encoded.vectors import Vectors, read_ids
from qontext.retrieve.index import Array, Backend
from qontext.retrieve.index.exact import BlockIndex, Score, padded, ranked

CODES, STEPS, VECTORS = "codes.npy", "steps.npy", "vectors.npy"
_BLOCK, _VALUES = 16_384, 1 << 24


class QuantizedOptions(Options):
    oversample: int = Field(4, ge=1)
    """Candidates per result that are taken by their codes and scored again by their vectors."""

    rescore: Literal["fp32", "fp16", "none"] = "fp32"
    """Number format of the vectors on disk; none keeps codes alone, whose scores are then final."""


class QuantizedIndex(BlockIndex):
    """Codes [P, K] in the order of the ids, each decoded to a row of [B, D]; and the vectors [P, D], if they were kept."""

    def __init__(
        self,
        codes_PK: Array,
        decode: Callable[[Array], Array],
        steps_D: Array,
        vectors_PD: Array | None,
        ids: Array,
        oversample: int,
    ) -> None:
        self.codes, self.decode, self.steps = codes_PK, decode, steps_D
        self.vectors, self._ids, self.oversample = vectors_PD, ids, oversample
        self.device = torch.device("cpu")

    @property
    def dimension(self) -> int:
        return len(self.steps)

    @property
    def ids(self) -> Array:
        return self._ids

    def _search(self, queries: Tensor, k: int, rows: Array | None) -> tuple[Array, Array]:
        if self.vectors is None:
            return super()._search(queries, k, rows)
        count = len(self.codes) if rows is None else int(rows.sum())
        size = min(self.oversample * k, count)
        numbers_QC = self._best(queries, size, size, rows).numbers.numpy()
        return ranked(numbers_QC, self._rescored(queries.numpy(), numbers_QC), k)

    def _blocks(self, rows: Array | None) -> Iterator[tuple[Tensor, Score]]:
        chosen = None if rows is None else np.flatnonzero(rows)
        count, steps_D = len(self.codes) if chosen is None else len(chosen), torch.from_numpy(self.steps)
        for start in range(0, count, _BLOCK):
            some = slice(start, min(start + _BLOCK, count))
            numbers = np.arange(some.start, some.stop) if chosen is None else chosen[some]
            codes = self.codes[some] if chosen is None else self.codes[numbers]
            block_BD = padded(torch.from_numpy(self.decode(codes)))

            def score(queries: Tensor, block_BD: Tensor = block_BD, count: int = len(numbers)) -> Tensor:
                return ((queries * steps_D) @ block_BD.T)[:, :count]

            yield torch.from_numpy(numbers), score
            self.advance(len(numbers))

    def _rescored(self, queries_QD: Array, numbers_QC: Array) -> Array:
        """[Q, C] the candidates' scores in fp32."""
        assert self.vectors is not None
        scores = np.empty(numbers_QC.shape, np.float32)
        rows = max(1, _VALUES // max(1, numbers_QC.shape[1] * self.dimension))
        for start in range(0, len(queries_QD), rows):
            some = slice(start, start + rows)
            found_QCD = self.vectors[numbers_QC[some]].astype(np.float32)
            scores[some] = (found_QCD * queries_QD[some, None]).sum(2)
        return scores


def _cast(rows: Array, kind: Any) -> Array:
    with np.errstate(over="ignore"):
        values = rows.astype(kind)
    if kind is np.float16 and not np.isfinite(values).all():
        raise QontextError("a vector does not fit fp16", remedy="Use --rescore fp32.")
    return values


class Quantized(Backend):
    """The base of both kinds: codes, steps and vectors as arrays in the order of the ids."""

    Options = QuantizedOptions
    code: ClassVar[Any]
    """The type of a code's bytes."""

    @classmethod
    def width(cls, dimension: int) -> int:
        """K."""
        raise NotImplementedError

    @classmethod
    def steps(cls, source: Vectors) -> Array:
        """a [D]."""
        raise NotImplementedError

    @classmethod
    def encode(cls, vectors_BD: Array, steps_D: Array) -> Array:
        raise NotImplementedError

    @classmethod
    def decode(cls, codes_BK: Array, dimension: int) -> Array:
        """[B, D] float32, without the steps."""
        raise NotImplementedError

    @classmethod
    def build(
        cls, source: Vectors, work: Workdir, options: QuantizedOptions, advance: Callable[[int], None]
    ) -> int:
        steps_D = cls.steps(source)
        forms: dict[str, tuple[int, Any]] = {CODES: (cls.width(source.dimension), cls.code)}
        if options.rescore != "none":
            forms[VECTORS] = (source.dimension, {"fp32": np.float32, "fp16": np.float16}[options.rescore])
        for name, (width, kind) in forms.items():
            with work.write(name) as path:
                shape = (len(source), width)
                array = np.lib.format.open_memmap(path, "w+", kind, shape)
                for numbers, part in source.blocks():
                    for start in range(0, len(part), _BLOCK):
                        rows = np.asarray(part[start : start + _BLOCK], np.float32)
                        values = _cast(rows, kind) if name == VECTORS else cls.encode(rows, steps_D)
                        array[numbers[start : start + _BLOCK]] = values
                        advance(len(rows) if name == CODES else 0)
                array.flush()
        with work.write(STEPS) as path, path.open("wb") as file:
            np.save(file, steps_D, allow_pickle=False)
        return len(source)

    @classmethod
    def load(cls, artifact: Artifact) -> QuantizedIndex:
        ids, folder = read_ids(artifact.path), artifact.path
        steps_D = read_array(folder / STEPS, "f", mapped=False)
        dimension = len(steps_D)
        codes = read_array(folder / CODES, "iu", shape=(len(ids), cls.width(dimension)))
        vectors = None
        if artifact.config["rescore"] != "none":
            vectors = read_array(folder / VECTORS, "f", shape=(len(ids), dimension))
        oversample = artifact.config.take("oversample", int)
        return QuantizedIndex(
            codes, lambda some: cls.decode(some, dimension), steps_D, vectors, ids, oversample
        )


class Int8(Quantized):
    """A byte for each dimension."""

    code = np.int8

    @classmethod
    def width(cls, dimension: int) -> int:
        return dimension

    @classmethod
    def steps(cls, source: Vectors) -> Array:
        greatest = np.zeros(source.dimension, np.float32)
        for _, part in source.blocks():
            for start in range(0, len(part), _BLOCK):
                rows = np.abs(np.asarray(part[start : start + _BLOCK], np.float32))
                greatest = np.maximum(greatest, rows.max(0, initial=0))
        return np.where(greatest > 0, greatest / 127, 1).astype(np.float32)

    @classmethod
    def encode(cls, vectors_BD: Array, steps_D: Array) -> Array:
        codes: Array = np.rint(vectors_BD / steps_D).clip(-127, 127).astype(np.int8)
        return codes

    @classmethod
    def decode(cls, codes_BK: Array, dimension: int) -> Array:
        return codes_BK.astype(np.float32)


class Binary(Quantized):
    """A bit for each dimension: its sign."""

    code = np.uint8

    @classmethod
    def width(cls, dimension: int) -> int:
        return -(-dimension // 8)

    @classmethod
    def steps(cls, source: Vectors) -> Array:
        return np.ones(source.dimension, np.float32)

    @classmethod
    def encode(cls, vectors_BD: Array, steps_D: Array) -> Array:
        return np.packbits(vectors_BD > 0, axis=1)

    @classmethod
    def decode(cls, codes_BK: Array, dimension: int) -> Array:
        bits = np.unpackbits(codes_BK, axis=1, count=dimension)
        return bits.astype(np.float32) * 2 - 1
