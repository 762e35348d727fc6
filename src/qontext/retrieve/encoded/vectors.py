"""Vectors on disk: the memory-mapped output of `encode`.

Part k holds the vectors of a block of passages (``vectors-00000.npy``) and their ids (``ids-00000.parquet``).
Passages are numbered in the order of their *ids*, not of the parts, so that ties are broken by number and a
run can be written without comparing strings. The numbers, in the order of the parts, are stored as
``derived/numbers.npy``, so that ids are sorted only once; and the passages' places, in the order of their numbers, as
``derived/places.npy``, so that the ids of a few results are found without reading all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from qontext.data import records
from qontext.frame.artifacts import DERIVED, META, Artifact, Workdir, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.files import damaged, read_array
from qontext.models.folder import TextKind

_IDS = pa.schema([pa.field("id", pa.string(), nullable=False)])

TOKEN_BITS = "token-bits"
"""The representation of bits of tokens alone, which earlier versions wrote."""
NUMBERS, PLACES = f"{DERIVED}numbers.npy", f"{DERIVED}places.npy"
_PARTS_KEPT = 64
"""Parts whose ids are kept in memory for the next question."""
_ROWS, _SORTED = 16_384, 1 << 20


@dataclass(frozen=True)
class Encoded:
    """An `encode` artifact of any representation. Its parts are memory-mapped."""

    artifact: Artifact
    parts: Sequence[Any]
    """Each part's representations, as many as it has passages."""
    id_files: list[Path]

    @cached_property
    def part_ids(self) -> list[pa.Array]:
        """For each part, its ids; read on first use."""
        return [self.ids_of(part) for part in range(len(self.parts))]

    def ids_of(self, part: int) -> pa.Array:
        """The ids of one part; those of others are not read."""
        return _ids(self.id_files[part], rows=len(self.parts[part]))

    @property
    def encoder(self) -> dict[str, str]:
        """The encoder of the vectors, from the artifact's description."""
        return dict(self.artifact.inputs["encoder"])

    @cached_property
    def ids(self) -> np.ndarray[Any, Any]:
        """[P] all ids, ascending, as Python strings."""
        ids = np.empty(len(self), object)
        ids[self._numbers] = as_objects(pa.chunked_array(self.part_ids))
        return ids

    @cached_property
    def part_numbers(self) -> list[np.ndarray[Any, Any]]:
        """For each part, the numbers of its passages: the positions of their ids in `ids`."""
        return np.split(self._numbers, self._ends[:-1])

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def names(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """[N] the ids of these passages. Unlike `ids`, it reads only the parts in which they are."""
        places = self.places(numbers)
        order = np.argsort(places)
        names, starts = np.empty(len(places), object), self._ends - [len(part) for part in self.parts]
        ends = np.searchsorted(places[order], self._ends)
        for part, (first, last) in enumerate(pairwise([0, *ends.tolist()])):
            if first < last:
                here = order[first:last]
                names[here] = as_objects(self._recent_ids(part).take(_indices(places[here] - starts[part])))
        return names

    def places(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """[N] where these passages stand in the order of the parts."""
        places: np.ndarray[Any, Any] = self._places[numbers]
        return places

    def blocks(self) -> Iterator[tuple[np.ndarray[Any, Any], Any]]:
        """(numbers, representations) of each part."""
        yield from zip(self.part_numbers, self.parts)

    def check_rows(self, numbers: np.ndarray[Any, Any], is_finite: np.ndarray[Any, Any]) -> None:
        """Refuse the first of the passages `numbers` [N] whose vector is not finite."""
        if not is_finite.all():
            raise QontextError(
                f"the vector of {self.ids[numbers[is_finite.argmin()]]!r} is not finite (NaN or infinity)",
                place=self.artifact.path,
                remedy="Encode again with --overwrite.",
            )

    @cached_property
    def _numbers(self) -> np.ndarray[Any, Any]:
        """[P] the passages' numbers, in the order of the parts: mapped where `encode` stored them."""
        if NUMBERS in self.artifact.meta["parts"]:
            return read_array(self.artifact.part(NUMBERS), "i", shape=(len(self),))
        return numbers_of(self.part_ids)[0]

    @cached_property
    def _places(self) -> np.ndarray[Any, Any]:
        """[P] where the passage of each number stands in the order of the parts."""
        if PLACES in self.artifact.meta["parts"]:
            return read_array(self.artifact.part(PLACES), "i", shape=(len(self),))
        return inverse(self._numbers)

    @cached_property
    def _ends(self) -> np.ndarray[Any, Any]:
        """For each part, the place after its last passage."""
        return np.cumsum([len(part) for part in self.parts])

    @cached_property
    def _recent_ids(self) -> Callable[[int], pa.Array]:
        return lru_cache(_PARTS_KEPT)(self.ids_of)


class Vectors(Encoded):
    """One vector for each passage."""

    parts: list[np.ndarray[Any, Any]]
    """[rows, D] float16 or float32 each"""

    @property
    def dimension(self) -> int:
        return int(self.parts[0].shape[1])

    def check(self) -> None:
        """Refuse non-finite vectors. Reads all of them."""
        for numbers, part in self.blocks():
            for start in range(0, len(part), _ROWS):
                rows = np.asarray(part[start : start + _ROWS], np.float32)
                is_finite: Any = np.isfinite(rows).all(axis=1)
                self.check_rows(numbers[start : start + _ROWS], is_finite)


class ArrayVectors:
    """Vectors that are not an artifact, one of each text, as exact search reads them. The texts are numbered in the order of
    the parts, which may be memory-mapped; their `ids`, if they have any, ascend."""

    def __init__(self, parts: list[np.ndarray[Any, Any]], ids: np.ndarray[Any, Any] | None = None) -> None:
        self.parts = parts
        self._starts = np.cumsum([0, *map(len, parts)])
        self.ids = np.arange(len(self)) if ids is None else ids

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def dimension(self) -> int:
        return int(self.parts[0].shape[1])

    def blocks(self) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """(numbers, vectors) of each part."""
        for start, part in zip(self._starts.tolist(), self.parts):
            yield np.arange(start, start + len(part)), part

    def names(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """[N] the ids of these texts."""
        names: np.ndarray[Any, Any] = self.ids[numbers]
        return names

    def take(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """[N, D] the vectors of these texts."""
        rows = np.empty((len(numbers), self.dimension), np.float32)
        for start, part in zip(self._starts.tolist(), self.parts):
            here = (numbers >= start) & (numbers < start + len(part))
            rows[here] = part[numbers[here] - start]
        return rows

    def check_rows(self, numbers: np.ndarray[Any, Any], is_finite: np.ndarray[Any, Any]) -> None:
        """Refuse the first of the texts `numbers` [N] whose vector is not finite."""
        if not is_finite.all():
            name = self.ids[numbers[is_finite.argmin()]]
            raise QontextError(f"the vector of {name!r} is not finite (NaN or infinity)")


def numbers_of(part_ids: list[pa.Array]) -> tuple[np.ndarray[Any, Any], str | None]:
    """[P] where each id stands among all of them in ascending order; and an id that occurs twice, if one does."""
    # One array, in which values are found faster than in many; large, since ids may have more than 2 GB.
    ids = pa.chunked_array(part_ids, pa.string()).cast(pa.large_string()).combine_chunks()
    order = pc.sort_indices(ids)
    repeated = None
    for start in range(0, len(ids), _SORTED):
        stretch = ids.take(order[start : start + _SORTED + 1])
        same = pc.equal(stretch[1:], stretch[:-1])
        if repeated is None and pc.any(same).as_py():
            repeated = stretch[pc.index(same, True).as_py()].as_py()
    return inverse(order.to_numpy()), repeated


def inverse(order: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The permutation that undoes this one."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def representation_of(artifact: Artifact) -> str:
    """The representation of the texts that `encode` wrote."""
    return str(artifact.summary.get("representation", "vector"))


def prompts_of(artifact: Artifact) -> dict[TextKind, str | None]:
    """The prompts with which `encode` read the texts of vectors, or of their index, if not those of the encoder's folder."""
    given = artifact.summary.take("prompts", dict[TextKind, str]) if "prompts" in artifact.summary else {}
    return {**given}


def pooling_of(artifact: Artifact) -> str | None:
    """The pooling with which `encode` made vectors, or those of their index, if not that of the encoder's folder."""
    values = artifact.config if artifact.verb == "encode" else artifact.summary
    pooling: str | None = values.take("pooling", str | None) if "pooling" in values else None
    return pooling


def stored_as(artifact: Artifact) -> str:
    """The form in which `encode` stored each text: the `stored` of a representation, windows, or bits of tokens."""
    from qontext.models.representations import REPRESENTATIONS

    if (name := representation_of(artifact)) in ("vector", "windows", TOKEN_BITS):
        return name
    return str(REPRESENTATIONS.load(name, place=artifact.path / META).stored)


def open_vectors(path: Path | str) -> Vectors:
    """The vectors at `path`, the output of `encode`; only headers are checked."""
    artifact = open_artifact(path, verb="encode")
    if (kind := representation_of(artifact)) != "vector":
        raise QontextError(
            f"holds the representation {kind!r}, not one vector of each text",
            place=path,
            remedy="'qontext rerank --tokens' reads it."
            if kind == TOKEN_BITS
            else "'qontext search' searches it as it is.",
        )
    files = [file for file in artifact.parts(".npy") if file.name.startswith("vectors-")]
    ids = artifact.parts(".parquet")
    if len(files) != len(ids) or not files:
        raise damaged(artifact.path, f"it has {len(files)} files of vectors and {len(ids)} of ids")
    parts: list[np.ndarray[Any, Any]] = []
    for file, id_file in zip(files, ids):
        rows = records.open_parquet(id_file).metadata.num_rows
        part = read_array(file, "f", shape=(rows, parts[0].shape[1] if parts else None))
        if part.dtype not in (np.float16, np.float32):
            raise damaged(file, f"its type is {part.dtype}, expected float16 or float32")
        parts.append(part)
    return Vectors(artifact, parts, ids)


def write_numbers(work: Workdir, files: list[str], place: str) -> None:
    """Number the passages whose ids are in these files, and refuse ids that occur twice."""
    numbers, repeated = numbers_of([_ids(work.path / file) for file in files])
    if repeated is not None:
        raise QontextError(f"the id {repeated!r} occurs twice", place=place)
    for name, array in ((NUMBERS, numbers), (PLACES, inverse(numbers))):
        with work.write(name) as path, path.open("wb") as file:
            np.save(file, array, allow_pickle=False)


def write_ids(path: Path, ids: np.ndarray[Any, Any] | pa.ChunkedArray) -> None:
    column = ids if isinstance(ids, pa.ChunkedArray) else pa.array(ids, pa.string())
    pq.write_table(pa.table({"id": column}), path)


def read_ids(folder: Path) -> np.ndarray[Any, Any]:
    """[P] the ids of an index, in order of their numbers."""
    return as_objects(_ids(folder / "ids.parquet"))


def _indices(numbers: np.ndarray[Any, Any]) -> pa.Array:
    """The numbers as PyArrow reads them. (`pyarrow.array` imports pandas where it is installed.)"""
    return pa.Array.from_buffers(
        pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers, np.int64))]
    )


def as_objects(texts: pa.Array | pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """The texts as an array of strings. (PyArrow's own conversion imports pandas where it is installed.)"""
    return np.array(texts.to_pylist(), dtype=object)


def _ids(file: Path, rows: int | None = None) -> pa.Array:
    ids = records.read_part(file, _IDS)["id"].combine_chunks()
    if rows is not None and len(ids) != rows:
        raise damaged(file, f"it has {len(ids):,} ids for {rows:,} vectors")
    return ids
