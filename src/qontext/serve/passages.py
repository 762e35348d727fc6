"""The passages of results: all in memory as Arrow columns, found by id or by document."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qontext.data.collection import Passage, read_passages
from qontext.data.places import Found, is_table, parsed, place_of, read_columns
from qontext.data.records import PLACES
from qontext.frame.errors import QontextError
from qontext.retrieve.where import Condition

_BATCH = 16_384
_SMALL = 500
"""Documents of a small collection, of which all ids are compared with an unknown one."""
Array = np.ndarray[Any, Any]


def conditions(
    where: Sequence[str] = (),
    folder: str | None = None,
    document: str | None = None,
    source: str | None = None,
) -> tuple[str | Condition, ...]:
    """The conditions of a search: those of `qontext search --where`, a folder of documents, one document, and a source, or
    several, separated by ``|``."""
    own = [Condition("folder", "==", folder.rstrip("/"))] if folder else []
    own += [Condition("document", "==", document)] if document else []
    own += [Condition("source", "=", source)] if source else []
    return (*where, *own)


class Passages:
    """The passages of one collection, numbered from 0 in corpus order."""

    def __init__(self, passages: Iterable[Passage], name: str, places: pa.Table | None = None) -> None:
        self.name, self._places = name, places
        batches: list[pa.RecordBatch] = []
        rows: list[Passage] = []
        for passage in passages:
            rows.append(passage)
            if len(rows) == _BATCH:
                batches.append(_batch(rows))
                rows = []
        table = pa.Table.from_batches([*batches, _batch(rows)])
        if not len(table):
            raise QontextError("contains no passages", place=name)
        self._ids, self._titles, self._texts = (
            table[column].combine_chunks() for column in ("id", "title", "text")
        )
        documents = table["doc"].combine_chunks().dictionary_encode()
        self._documents, self._codes = documents.dictionary, documents.indices.to_numpy()
        self._by_id, self._by_document = _Sorted(self._ids), _Sorted(self._documents)
        self._grouped = np.argsort(self._codes, kind="stable")
        self._ends = np.cumsum(np.bincount(self._codes, minlength=len(self._documents)))

    @classmethod
    def read(cls, source: str) -> Passages:
        """Load the passages at a path with `read_passages`."""
        places = _read_places(source) if is_table(Path(source)) else None
        return cls(read_passages(source), source, places)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self._documents)

    def find(self, ids: Iterable[str]) -> dict[str, Found]:
        """The passages with these ids, as far as they exist."""
        numbers = {id: number for id in ids if (number := self._by_id.find(id)) is not None}
        return {id: self._found(number) for id, number in numbers.items()}

    def _found(self, number: int) -> Found:
        document = self._documents[int(self._codes[number])].as_py()
        passage = Passage(
            self._ids[number].as_py(), self._titles[number].as_py(), self._texts[number].as_py(), document
        )
        if self._places is None:
            return Found(passage)
        (row,) = self._places.slice(number, 1).to_pylist()
        sentences = tuple(row.pop("sentences", None) or ())
        return Found(passage, place_of(row, Path(self.name)), sentences)

    def position(self, id: str) -> tuple[int, int]:
        """(position of the passage in its document from 1, number of its passages)."""
        number = self._by_id.find(id)
        assert number is not None
        rows = self._rows(int(self._codes[number]))
        return int(np.searchsorted(rows, number)) + 1, len(rows)

    def document(self, id: str) -> list[Found]:
        """The passages of a document, in order; none if there is no such document."""
        code = self._by_document.find(id)
        return [] if code is None else [self._found(int(number)) for number in self._rows(code)]

    @cached_property
    def sources(self) -> Counter[str]:
        """The sources of the passages → the number of passages."""
        counts: Counter[str] = Counter()
        for text, count in self._metadata.items():
            if name := parsed(text, Path(self.name)).get("source"):
                counts[str(name)] += count
        return counts

    def similar_documents(self, id: str, most: int = 50) -> list[str]:
        """Ids of documents that begin like `id`, or contain its last part in either case, at most `most` of each; all ids
        of a small collection."""
        if self.documents <= _SMALL:
            return list(self._by_document)
        name = id.rstrip("/").rpartition("/")[2]
        name = name.rpartition("#")[0] or name
        contain = self._documents.filter(pc.match_substring(self._documents, name, ignore_case=True))
        place = bisect_left(self._by_document, id)
        return [*contain[: most if name else 0].to_pylist(), *self._by_document.around(place, most // 2)]

    @cached_property
    def _metadata(self) -> Counter[str]:
        """The metadata of all passages, as JSON, with how many passages have each."""
        if self._places is None or "metadata" not in self._places.column_names:
            return Counter()
        counts = pc.value_counts(self._places["metadata"]).to_pylist()
        return Counter({row["values"]: row["counts"] for row in counts if row["values"] is not None})

    @property
    def _has_folders(self) -> bool:
        return any('"folder"' in text for text in self._metadata)

    @cached_property
    def folders(self) -> list[str]:
        """The folders of documents, from their metadata, else from ids with a slash; at most 200, by name."""
        if self._has_folders:
            found = (parsed(text, Path(self.name)).get("folder") for text in self._metadata)
            folders = {
                str(name) for names in found for name in (names if isinstance(names, list) else [names])
            }
            return sorted(folders - {"", "None"})[:200]
        parents: set[str] = set()
        for id in self._documents.filter(pc.match_substring(self._documents, "/")).to_pylist():
            parents.update(str(parent) for parent in PurePosixPath(id).parents if parent.name)
        return sorted(parents)[:200]

    def sample(self, count: int) -> list[Passage]:
        """At most `count` passages, spread over the collection."""
        count = min(count, len(self))
        return [self._found(number * len(self) // count).passage for number in range(count)]

    def _rows(self, code: int) -> Array:
        start = int(self._ends[code - 1]) if code else 0
        rows: Array = self._grouped[start : int(self._ends[code])]
        return rows


class _Sorted(Sequence[str]):
    """Strings in ascending order, storing only the order."""

    def __init__(self, strings: Any) -> None:
        self._strings = strings
        self._order = pc.array_sort_indices(strings).to_numpy()

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: Any) -> Any:
        return self._strings[int(self._order[place])].as_py()

    def find(self, value: str) -> int | None:
        """The number of the string, if present."""
        place = bisect_left(self, value)
        return int(self._order[place]) if place < len(self) and self[place] == value else None

    def around(self, place: int, count: int) -> list[str]:
        """The `count` strings on either side of a place."""
        return [self[number] for number in range(max(0, place - count), min(len(self), place + count))]


def _read_places(source: str) -> pa.Table | None:
    """The columns with the places of passages; None if there are none."""
    tables = []
    for _, batch in read_columns(source):
        there = [name for name in ("sentences", *PLACES.names) if name in batch.schema.names]
        columns = {
            name: batch[name].dictionary_encode() if pa.types.is_string(batch[name].type) else batch[name]
            for name in there
        }
        tables.append(pa.table(columns))
    if not tables or not any(table.num_columns for table in tables):
        return None
    return pa.concat_tables(tables, promote_options="default").unify_dictionaries()


def _batch(rows: list[Passage]) -> pa.RecordBatch:
    columns = {
        name: pa.array([getattr(row, name) for row in rows], pa.large_string())
        for name in ("id", "title", "text", "doc")
    }
    return pa.RecordBatch.from_pydict(columns)
