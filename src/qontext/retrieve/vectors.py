"""Vectors on disk: what `encode` writes, opened without being read.

Part k holds the vectors of a block of passages (``vectors-00000.npy``) and their ids (``ids-00000.parquet``).
Passages are numbered by the order of their *ids*, not of the parts: then the smaller number wins a tie, and a
run can be written without looking at a string.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qontext.artifacts import Artifact, open_artifact
from qontext.errors import QontextError


@dataclass(frozen=True)
class Vectors:
    """An `encode` artifact. Its parts are memory-mapped."""

    artifact: Artifact
    parts: list[np.ndarray[Any, Any]]  # [rows, D] float16 or float32 each
    part_ids: list[pa.Array]

    @property
    def dimension(self) -> int:
        return int(self.parts[0].shape[1])

    @property
    def encoder(self) -> dict[str, str]:
        """`path` and `digest` of the encoder that made them."""
        return dict(self.artifact.meta["inputs"]["encoder"])

    @cached_property
    def ids(self) -> np.ndarray[Any, Any]:
        """[P] all ids, ascending."""
        found: np.ndarray[Any, Any] = self._unordered[self._order]
        return found

    @cached_property
    def part_numbers(self) -> list[np.ndarray[Any, Any]]:
        """For each part, the numbers of its passages: where their ids stand in `ids`."""
        numbers = np.empty(len(self._order), np.int64)
        numbers[self._order] = np.arange(len(self._order))
        return np.split(numbers, np.cumsum([len(part) for part in self.parts])[:-1])

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def blocks(
        self, *, rank: int = 0, world: int = 1
    ) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """(numbers, vectors) of the parts that fall to this rank."""
        yield from list(zip(self.part_numbers, self.parts))[rank::world]

    @cached_property
    def _unordered(self) -> np.ndarray[Any, Any]:
        ids: np.ndarray[Any, Any] = pa.chunked_array(self.part_ids).to_numpy()
        return ids

    @cached_property
    def _order(self) -> np.ndarray[Any, Any]:
        return np.array(sorted(range(len(self._unordered)), key=self._unordered.__getitem__), np.int64)


def open_vectors(path: Path | str) -> Vectors:
    """The vectors that `encode` wrote at `path`, checked as far as their headers tell."""
    artifact = open_artifact(path, verb="encode")
    parts = [_map(file) for file in artifact.parts(".npy")]
    ids = [pq.read_table(file).column("id").combine_chunks() for file in artifact.parts(".parquet")]
    if len(parts) != len(ids) or not parts:
        raise QontextError(f"has {len(parts)} parts of vectors and {len(ids)} of ids", place=path)
    for part, part_ids, file in zip(parts, ids, artifact.parts(".npy")):
        if part.ndim != 2 or part.shape[1] != parts[0].shape[1]:
            raise QontextError(
                f"holds vectors of shape {part.shape}, the first part has {parts[0].shape[1]} dimensions",
                place=file,
            )
        if len(part) != len(part_ids):
            raise QontextError(f"holds {len(part)} vectors for {len(part_ids)} ids", place=file)
    return Vectors(artifact, parts, ids)


def write_ids(path: Path, ids: np.ndarray[Any, Any]) -> None:
    pq.write_table(pa.table({"id": pa.array(ids, pa.string())}), path)


def read_ids(folder: Path) -> np.ndarray[Any, Any]:
    """[P] the ids of an index, in order of their numbers."""
    try:
        ids: np.ndarray[Any, Any] = pq.read_table(folder / "ids.parquet").column("id").to_numpy()
    except (OSError, pa.ArrowInvalid) as error:
        raise QontextError(f"the index's ids cannot be read: {error}", place=folder) from None
    return ids


def _map(file: Path) -> np.ndarray[Any, Any]:
    try:
        part: np.ndarray[Any, Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise QontextError(
            f"the file of vectors is cut off or damaged: {error}",
            place=file,
            remedy="Encode anew, with --overwrite.",
        ) from None
    if part.dtype not in (np.float16, np.float32):
        raise QontextError(f"holds {part.dtype}, expected float16 or float32", place=file)
    return part
