"""The output of `encode`, mapped from the disk part by part: a vector of each passage, or several entries in flat arrays.

| file of part k | one vector | windows, tokens | sparse | matches |
|---|---|---|---|---|
| ids-k.parquet | the ids of its N passages | the same | the same | the same |
| vectors-k.npy | [N, D] vectors | [K, D] vectors, by passage | [K] weights, by term | [K, D] vectors, by term |
| starts-k.npy | | [N + 1] where each passage begins | [V + 1] where each term begins | the same |
| rows-k.npy | | | [K] the passages, counted within the part | the same |

With `encode --tokens` also token-bits-k.npy [K, B] bytes, by passage, and token-starts-k.npy [N + 1]. What has terms is
stored as postings, so that search reads only the terms of a query, and nothing has to be indexed.

Passages are numbered in the order of their *ids*, not of the parts, so that ties are broken by number and a run can be
written without comparing strings. The numbers, in the order of the parts, are ``derived/numbers.npy``; the passages' places,
in the order of their numbers, are ``derived/places.npy``, so that the ids of a few results are found without reading all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from qontext.data import records
from qontext.frame.artifacts import DERIVED, META, Artifact, Workdir, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.files import damaged, read_array
from qontext.models.folder import TextKind
from qontext.models.packed import Packed
from qontext.retrieve.index.postings import Postings, postings_of

Array: TypeAlias = np.ndarray[Any, Any]

NUMBERS, PLACES = f"{DERIVED}numbers.npy", f"{DERIVED}places.npy"
VECTORS, BITS, BIT_STARTS = "vectors", "token-bits", "token-starts"
_IDS = pa.schema([pa.field("id", pa.string(), nullable=False)])
_PARTS_KEPT = 64
"""Parts whose ids are kept in memory for the next question."""
_ROWS, _SORTED = 16_384, 1 << 20


class Parted:
    """Representations of texts, numbered in the order of their ids, in parts: arrays [N, D], `Packed` or `Postings`."""

    parts: Sequence[Any]
    ids: Array
    """[P] all ids, ascending, as Python strings."""
    part_numbers: Sequence[Array]
    """For each part, the numbers of its texts: the positions of their ids in `ids`."""

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def dimension(self) -> int:
        first = self.parts[0]
        return int((first.values if isinstance(first, Packed) else first).shape[1])

    def blocks(self) -> Iterator[tuple[Array, Any]]:
        """(numbers, representations) of each part."""
        yield from zip(self.part_numbers, self.parts)

    def names(self, numbers: Array) -> Array:
        """[N] the ids of these texts."""
        names: Array = self.ids[numbers]
        return names

    def take(self, places: Array) -> Any:
        """The representations of the texts at these places, which are counted over all parts."""
        ends = np.cumsum([len(part) for part in self.parts])
        order = np.argsort(places, kind="stable")
        part_of = np.searchsorted(ends, places[order], side="right")
        pieces = [
            rows_of(self.parts[part], places[order][part_of == part] - (ends[part] - len(self.parts[part])))
            for part in np.unique(part_of)
        ]
        return rows_of(joined(pieces), np.argsort(order))

    def check(self) -> None:
        """Refuse vectors that are not finite. Reads all of them."""
        for numbers, part in self.blocks():
            for start in range(0, len(part), _ROWS):
                self.check_rows(numbers[start : start + _ROWS], part[start : start + _ROWS])

    def check_rows(self, numbers: Array, rows: Array | Packed) -> None:
        """Refuse the first of the texts `numbers` [N] that has a vector that is not finite."""
        values = rows.values if isinstance(rows, Packed) else rows
        is_finite: Any = np.isfinite(values).all(axis=1)
        if isinstance(rows, Packed):
            is_finite = np.logical_and.reduceat(is_finite, rows.starts[:-1])
        if not is_finite.all():
            name = self.ids[numbers[is_finite.argmin()]]
            raise QontextError(
                f"the vector of {name!r} is not finite (NaN or infinity)",
                place=self.artifact.path if isinstance(self, Encoded) else None,
                remedy="Encode again with --overwrite.",
            )


class ArrayVectors(Parted):
    """Vectors that are not an artifact, one of each text. The texts are numbered in the order of the parts, which may be
    memory-mapped; their `ids`, if they have any, ascend."""

    def __init__(self, parts: list[Array], ids: Array | None = None) -> None:
        self.parts = parts
        starts = np.cumsum([0, *map(len, parts)]).tolist()
        self.part_numbers = [np.arange(first, end) for first, end in pairwise(starts)]
        self.ids = np.arange(len(self)) if ids is None else ids


@dataclass(frozen=True)
class Encoded(Parted):
    """An `encode` artifact of any representation. Its parts are memory-mapped."""

    artifact: Artifact
    parts: Sequence[Any]
    id_files: list[Path]

    @property
    def encoder(self) -> dict[str, str]:
        """The encoder of the vectors, from the artifact's description."""
        return dict(self.artifact.inputs["encoder"])

    @cached_property
    def part_ids(self) -> list[pa.Array]:
        """For each part, its ids; read on first use."""
        return [self.ids_of(part) for part in range(len(self.parts))]

    def ids_of(self, part: int) -> pa.Array:
        """The ids of one part; those of others are not read."""
        return _ids(self.id_files[part], rows=len(self.parts[part]))

    @cached_property
    def ids(self) -> Array:  # type: ignore[override]
        ids = np.empty(len(self), object)
        ids[self._numbers] = as_objects(pa.chunked_array(self.part_ids))
        return ids

    @cached_property
    def part_numbers(self) -> list[Array]:  # type: ignore[override]
        return np.split(self._numbers, self._ends[:-1])

    def names(self, numbers: Array) -> Array:
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

    def places(self, numbers: Array) -> Array:
        """[N] where these passages stand in the order of the parts."""
        places: Array = self._places[numbers]
        return places

    @cached_property
    def _numbers(self) -> Array:
        """[P] the passages' numbers, in the order of the parts."""
        return read_array(self.artifact.part(NUMBERS), "i", shape=(len(self),))

    @cached_property
    def _places(self) -> Array:
        """[P] where the passage of each number stands in the order of the parts."""
        return read_array(self.artifact.part(PLACES), "i", shape=(len(self),))

    @cached_property
    def _ends(self) -> Array:
        """For each part, the place after its last passage."""
        return np.cumsum([len(part) for part in self.parts])

    @cached_property
    def _recent_ids(self) -> Callable[[int], pa.Array]:
        return lru_cache(_PARTS_KEPT)(self.ids_of)


def open_stored(path: Path | str, *forms: str) -> Encoded:
    """The output of `encode`; where `forms` are named, in one of them (see `form_of`). Only headers are checked."""
    artifact = open_artifact(path, verb="encode")
    form = form_of(artifact)
    if forms and form not in forms:
        raise QontextError(
            f"holds the representation {representation_of(artifact)!r}, not {' or '.join(forms)}",
            place=path,
            remedy="'qontext search' searches it as it is.",
        )
    return _open(artifact, form, VECTORS, "starts")


def open_vectors(path: Path | str) -> Encoded:
    """The output of `encode` with one vector of each text."""
    return open_stored(path, "vector")


def open_bits(path: Path | str) -> Encoded:
    """The bits of the passages' tokens that `encode --tokens` wrote beside the vectors."""
    artifact = open_artifact(path, verb="encode")
    if not has_bits(artifact):
        raise QontextError("holds no bits of tokens", place=path, remedy="Encode again with --tokens.")
    return _open(artifact, "bits", BITS, BIT_STARTS)


def _open(artifact: Artifact, form: str, values: str, starts: str) -> Encoded:
    ids = artifact.parts(".parquet")
    if not ids or len(ids) != sum(name.startswith(f"{values}-") for name in artifact.meta["parts"]):
        raise damaged(artifact.path, "it lacks files of vectors or of ids")
    parts: list[Any] = []
    for file in ids:
        number, rows = file.stem.removeprefix("ids-"), records.open_parquet(file).metadata.num_rows

        def read(name: str, kinds: str, number: str = number, **form: Any) -> Any:
            return read_array(artifact.part(f"{name}-{number}.npy"), kinds, **form)

        if form == "vector":
            width = parts[0].shape[1] if parts else None
            parts.append(read(values, "f", shape=(rows, width)))
        elif form in ("sparse", "matches"):
            data = read(values, "f") if form == "sparse" else read(values, "f", shape=(None, None))
            postings = Postings(data, read("rows", "iu"), read(starts, "i"), rows)
            if fault := postings.fault():
                raise damaged(artifact.path / f"{values}-{number}.npy", fault)
            parts.append(postings)
        else:
            entries = read(values, "u" if form == "bits" else "f", shape=(None, None))
            begins = read(starts, "i", shape=(rows + 1,), mapped=False)
            if begins[0] or begins[-1] != len(entries) or (np.diff(begins) < 1).any():
                raise damaged(
                    artifact.path / f"{starts}-{number}.npy", "the passages do not cover the vectors"
                )
            parts.append(Packed(begins, entries))
    return Encoded(artifact, parts, ids)


def write_part(
    work: Workdir, number: int, ids: list[str], texts: Array | Packed, width: int, dtype: Any, **columns: Any
) -> None:
    """A part: the ids, with more `columns` of hashes and the like, and the arrays, that of the values last."""
    arrays: dict[str, Any] = {VECTORS: texts}
    if isinstance(texts, Packed):
        arrays = {"starts": texts.starts, VECTORS: texts.values}
        if texts.terms is not None:
            postings = postings_of(texts, width)
            arrays = {"starts": postings.starts, "rows": postings.rows, VECTORS: postings.data}
    arrays[VECTORS] = arrays[VECTORS].astype(dtype, copy=False)
    if not np.isfinite(arrays[VECTORS]).all():
        raise QontextError("a vector does not fit fp16", remedy="Use --storage fp32.")
    with work.write(ids_name(number)) as path:
        records.write_table(path, pa.table({"id": ids, **columns}))
    for name, array in arrays.items():
        save_array(work, f"{name}-{number:05d}.npy", array)


def write_bits(work: Workdir, number: int, bits: Packed) -> None:
    """The part's bits of tokens."""
    save_array(work, f"{BIT_STARTS}-{number:05d}.npy", bits.starts)
    save_array(work, f"{BITS}-{number:05d}.npy", bits.values)


def write_numbers(work: Workdir, files: list[str], place: str) -> None:
    """Number the passages whose ids are in these files, and refuse ids that occur twice."""
    numbers, repeated = numbers_of([_ids(work.path / file) for file in files])
    if repeated is not None:
        raise QontextError(f"the id {repeated!r} occurs twice", place=place)
    save_array(work, NUMBERS, numbers)
    save_array(work, PLACES, inverse(numbers))


def save_array(work: Workdir, name: str, array: Array) -> None:
    """Write an array as a part of an artifact."""
    with work.write(name) as path, path.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def ids_name(number: int) -> str:
    """The file of a part's ids."""
    return f"ids-{number:05d}.parquet"


def numbers_of(part_ids: list[pa.Array]) -> tuple[Array, str | None]:
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


def inverse(order: Array) -> Array:
    """The permutation that undoes this one."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def rows_of(part: Array | Packed, rows: Array) -> Any:
    """These rows, in this order."""
    return part.take(rows) if isinstance(part, Packed) else part[rows]


def joined(parts: Sequence[Any]) -> Any:
    """The rows of all parts, one after the other."""
    return Packed.join(parts) if isinstance(parts[0], Packed) else np.concatenate(parts)


def representation_of(artifact: Artifact) -> str:
    """The representation of the texts that `encode` wrote."""
    return str(artifact.summary.get("representation", "vector"))


def form_of(artifact: Artifact) -> str:
    """The form in which `encode` stored each text: vector, windows, or the `stored` of another representation."""
    from qontext.models.representations import REPRESENTATIONS

    if (name := representation_of(artifact)) in ("vector", "windows"):
        return name
    return str(REPRESENTATIONS.load(name, place=artifact.path / META).stored)


def has_bits(artifact: Artifact) -> bool:
    """True if `encode` stored bits of tokens beside the vectors."""
    return "token_bytes" in artifact.summary


def prompts_of(artifact: Artifact) -> dict[TextKind, str | None]:
    """The prompts with which `encode` read the texts of vectors, or of their index, if not those of the encoder's folder."""
    given = artifact.summary.take("prompts", dict[TextKind, str]) if "prompts" in artifact.summary else {}
    return {**given}


def pooling_of(artifact: Artifact) -> str | None:
    """The pooling with which `encode` made vectors, or those of their index, if not that of the encoder's folder."""
    values = artifact.config if artifact.verb == "encode" else artifact.summary
    pooling: str | None = values.take("pooling", str | None) if "pooling" in values else None
    return pooling


def write_ids(path: Path, ids: Array | pa.ChunkedArray) -> None:
    """Write the ids of an index."""
    column = ids if isinstance(ids, pa.ChunkedArray) else pa.array(ids, pa.string())
    pq.write_table(pa.table({"id": column}), path)


def read_ids(folder: Path) -> Array:
    """[P] the ids of an index, in order of their numbers."""
    return as_objects(_ids(folder / "ids.parquet"))


def as_objects(texts: pa.Array | pa.ChunkedArray) -> Array:
    """The texts as an array of strings. (PyArrow's own conversion imports pandas where it is installed.)"""
    return np.array(texts.to_pylist(), dtype=object)


def _indices(numbers: Array) -> pa.Array:
    """The numbers as PyArrow reads them. (`pyarrow.array` imports pandas where it is installed.)"""
    return pa.Array.from_buffers(
        pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers, np.int64))]
    )


def _ids(file: Path, rows: int | None = None) -> pa.Array:
    ids = records.read_part(file, _IDS)["id"].combine_chunks()
    if rows is not None and len(ids) != rows:
        raise damaged(file, f"it has {len(ids):,} ids for {rows:,} vectors")
    return ids
