"""Common parts of index servers: the collection that a build owns, its rows, and search by keys.

A row's key is a whole number. In a new collection it is the passage's number; where an earlier build is replaced, passages
that stay keep their keys. Which key belongs to which passage is recorded in the index directory (`KEYS`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from qontext.data import records
from qontext.frame.artifacts import Artifact
from qontext.frame.config import Input, Machine, Options
from qontext.frame.errors import QontextError
from qontext.frame.files import damaged
from qontext.retrieve.index import Array, Index
from qontext.retrieve.index.servers.addresses import clean_settings
from qontext.retrieve.index.servers.passage_texts import TextRow

KEYS = "keys.parquet"
_KEYS = pa.schema(
    [pa.field("key", pa.int64(), nullable=False), pa.field("hash", pa.uint64(), nullable=False)]
)


class ServerOptions(Options):
    with_text: bool = False
    """Store document, title, text, place and metadata beside each vector, for others who query the collection."""

    texts: Annotated[str | None, Input()] = None
    """With --with-text: the passages, if those that were encoded are no longer there."""

    replace: Annotated[str | None, Machine()] = None
    """An earlier index in the same collection, which this one replaces: rows that did not change stay, others are
    written, and those of passages that are gone are deleted. The collection of a build that was not finished, or that had
    other settings, is created again."""

    neighbors: int = Field(16, ge=2, le=100)
    """HNSW: links per vector (M). More: higher recall, slower and larger."""

    effort: int = Field(200, ge=4, le=1000)
    """HNSW: candidates per vector while building (efConstruction) and per query while searching (ef)."""

    lists: int | None = Field(None, ge=1, le=32_768)
    """IVF: cells into which vectors are sorted; by default four times the root of their number."""

    probes: int = Field(32, ge=1)
    """IVF: cells that a query looks into."""

    @model_validator(mode="before")
    @classmethod
    def _no_password(cls, values: Any) -> Any:
        return clean_settings(values)


def cells(lists: int | None, vectors: int) -> int:
    """The number of lists of an IVF index."""
    return lists or min(32_768, max(1, int(4 * vectors**0.5)))


class StoredRows(NamedTuple):
    """Rows of a part that are to be written."""

    keys: Array  # [N] int64
    ids: list[str]
    vectors_ND: Array
    texts: list[TextRow] | None


class ServerStore(ABC):
    """A collection on a server, and what is known of its builds. `place` names it in messages."""

    place: str

    @abstractmethod
    def builds(self) -> tuple[str, str] | None:
        """(build, encoder): the key of the build that wrote it and the digest of its encoder; None if there is no such
        collection, empty texts if it was not written by an index build."""

    @abstractmethod
    def create(self, build: str, encoder: str) -> None:
        """Create the collection for this build. Nothing of it is done."""

    @abstractmethod
    def take_over(self, build: str) -> None:
        """Make the collection that of this build. Nothing of it is done."""

    @abstractmethod
    def drop(self) -> None:
        """Remove the collection."""

    @abstractmethod
    def write(self, build: str, part: int, rows: StoredRows) -> None:
        """Write the rows of a part in place of those with the same keys, unless it is recorded that the build wrote them.
        Refused with `rebuilt` where the collection was rebuilt in the meantime. May be called twice, also concurrently."""

    @abstractmethod
    def delete(self, keys: Array) -> None:
        """Delete rows, as far as they are there."""

    @abstractmethod
    def finish(self) -> None:
        """Flush, and create the index over the vectors."""

    @abstractmethod
    def count(self) -> int | None:
        """The number of rows, once finished; None if only this process can write any."""


def rebuilt(place: str) -> QontextError:
    """The error for a stale build."""
    return QontextError(
        f"{place} was rebuilt in the meantime", remedy="Search the index that was built last."
    )


class RowKeys(NamedTuple):
    """By number, each passage's key and the hash of its row."""

    keys: Array
    hashes: Array

    def write(self, path: Path) -> None:
        pq.write_table(pa.table([self.keys, self.hashes], schema=_KEYS), path)


def read_keys(folder: Path, count: int) -> RowKeys:
    table = records.read_part(folder / KEYS, _KEYS)
    if len(table) != count:
        raise damaged(folder / KEYS, f"it holds {len(table):,} keys for {count:,} ids")
    return RowKeys(table["key"].to_numpy(), table["hash"].to_numpy())


class ServerIndex(Index):
    """An index whose rows have keys."""

    def __init__(self, dimension: int, ids: Array, keys: Array | None) -> None:
        """Without `keys`, a passage's number is its key."""
        self._dimension, self._ids, self._keys = dimension, ids, keys
        self._order = None if keys is None else np.argsort(keys)

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def ids(self) -> Array:
        return self._ids

    @abstractmethod
    def _nearest(self, queries_QD: Array, k: int, chosen: Any) -> tuple[Array, Array]:
        """([Q, k] keys, [Q, k] scores), in any order; -1 and -inf where there are fewer. `chosen` are those to search among:
        ascending keys, or what `where` returned."""

    def search(self, queries_QD: Array, k: int, rows: Any = None) -> tuple[Array, Array]:
        is_mask = isinstance(rows, np.ndarray)
        k = min(k, int(rows.sum()) if is_mask else len(self.ids))
        if not k:
            return np.empty((len(queries_QD), 0), np.int64), np.empty((len(queries_QD), 0), np.float32)
        chosen = rows
        if is_mask:
            chosen = np.flatnonzero(rows)
            chosen = chosen if self._keys is None else np.sort(self._keys[chosen])
        keys, scores = self._nearest(np.ascontiguousarray(queries_QD, np.float32), k, chosen)
        numbers = self._numbers(keys)
        scores = np.where(numbers < 0, np.float32(-np.inf), scores)
        order = np.lexsort((numbers, -scores), axis=1)
        return np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)

    def _numbers(self, keys: Array) -> Array:
        """The numbers of the passages with these keys; -1 for others."""
        if self._keys is None or self._order is None:
            return np.where(keys < len(self._ids), keys, -1)
        at = np.minimum(np.searchsorted(self._keys, keys, sorter=self._order), len(self._keys) - 1)
        numbers = self._order[at]
        return np.where(self._keys[numbers] == keys, numbers, -1)


def runs(keys: Array) -> Array:
    """[R, 2] ascending keys as runs: the first, and the one after the last."""
    breaks = np.flatnonzero(np.diff(keys) != 1) + 1
    starts = np.concatenate([[0], breaks])
    ends = np.concatenate([breaks, [len(keys)]])
    ranges: Array = np.stack([keys[starts], keys[ends - 1] + 1], 1)
    return ranges


def check_owner(place: str, owner: tuple[str, str] | None, artifact: Artifact) -> None:
    """Refuse a collection (named `place`, with what `Store.builds` says) that is gone, or was rebuilt in the meantime."""
    if owner is None:
        raise QontextError(f"{place} does not exist", place=artifact.path, remedy="Build the index again.")
    if owner[0] != artifact.meta["key"]:
        raise QontextError(
            f"{place} was written by another build",
            place=artifact.path,
            remedy="Search the index that was built last, or build this one again under another name.",
        )
