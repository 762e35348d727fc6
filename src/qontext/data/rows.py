"""Rows [first, last) of Parquet files, or passages of any collection, without reading what stands before them.

A worker that makes one part reads the rows of that part. Parquet files are opened where the rows begin; of a text file,
and only of such a file, the lines before them are read, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, islice
from pathlib import Path

import pyarrow as pa

from qontext.data import records
from qontext.data.collection import is_parquet, read_passages, read_queries
from qontext.data.passage import PASSAGE_COLUMNS, Passage, RowKind, passages_of
from qontext.frame import artifacts
from qontext.frame.config import existing
from qontext.frame.errors import QontextError

_BATCH = 16_384


class TableRows:
    """The rows of an artifact's (or folder's, or file's) Parquet parts, of which the footers are read at once."""

    def __init__(self, source: Path | str, schema: pa.Schema, columns: list[str]) -> None:
        self.files = records.parquet_parts(source)
        self.schema = pa.schema([field for field in schema if field.name in columns])
        sizes: list[int] = [records.open_parquet(file).metadata.num_rows for file in self.files]
        self.starts = list(accumulate(sizes, initial=0))
        self._file = -1
        self._start = 0
        self._batch: pa.RecordBatch | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())

    def __len__(self) -> int:
        return self.starts[-1]

    def read(self, first: int, last: int) -> list[pa.RecordBatch]:
        """The rows in batches; consecutive calls go on where the last one ended."""
        batches, row = [], first
        while row < last:
            batch = self._rest_of_batch(row).slice(0, last - row)
            batches.append(batch)
            row += len(batch)
        return batches

    def _rest_of_batch(self, row: int) -> pa.RecordBatch:
        """The batch in which the row stands, from this row on."""
        file = bisect_right(self.starts, row) - 1
        if file != self._file or row < self._start:
            columns = self.schema.names
            self._batches = records.read_table(self.files[file], self.schema, columns=columns)
            self._file, self._start, self._batch = file, self.starts[file], None
        while self._batch is None or row >= self._start + len(self._batch):
            self._start += 0 if self._batch is None else len(self._batch)
            self._batch = next(self._batches)
        return self._batch.slice(row - self._start)


class PassageRows:
    """The passages of a collection, or its queries as passages, by the places at which they stand."""

    def __init__(self, source: Path | str, of: RowKind = "passages") -> None:
        self._queries: list[Passage] | None = None
        if of == "queries":
            self.source, self.table = existing(source, "queries"), None
            self._queries = [Passage(id, "", text, id) for id, text in read_queries(source).items()]
            return
        self.source = existing(source, "passages")
        self.table = (
            TableRows(self.source, records.PASSAGES, PASSAGE_COLUMNS) if is_parquet(self.source) else None
        )
        self._place = 0
        self._stream: Iterator[Passage] = iter(())

    def count(self) -> int:
        """The number of passages: from the footers, or by reading a text file."""
        if self._queries is not None:
            return len(self._queries)
        return len(self.table) if self.table is not None else sum(1 for _ in read_passages(self.source))

    def ids(self) -> pa.ChunkedArray:
        """The ids of all, in order."""
        if self._queries is not None:
            return pa.chunked_array([pa.array([query.id for query in self._queries], pa.string())])
        return all_ids(self.source)

    def read(self, first: int, last: int) -> list[Passage]:
        if self._queries is not None:
            return self._queries[first:last]
        if self.table is not None:
            return [
                passage
                for batch in self.table.read(first, last)
                for passage in passages_of(batch, self.source)
            ]
        if not self._place or first < self._place:
            self._place, self._stream = 0, read_passages(self.source)
        passages = list(islice(self._stream, first - self._place, last - self._place))
        self._place = last
        return passages


def refuse_repeated_ids(source: Path | str, what: str = "id") -> int:
    """The number of passages, once each is known to have an id of its own. Reads the ids of all, unless `split`,
    which keeps them apart, wrote the passages."""
    from qontext.data.ids import first_repeated

    if artifacts.is_artifact(source) and artifacts.open_artifact(source).verb == "split":
        return records.count_rows(source)
    count, repeated = first_repeated(lambda: _ids(source))
    if repeated is not None:
        raise QontextError(f"the {what} {repeated!r} occurs twice", place=source)
    return count


def check_generated(queries: Path | str, of: RowKind) -> None:
    """Refuse output of `generate` that was generated from other texts: the ids of queries may be those of passages, too."""
    if not artifacts.is_artifact(queries):
        return
    about = artifacts.open_artifact(queries)
    read = about.meta["config"].get("of", "passages") if about.verb == "generate" else "passages"
    if read != of:
        raise QontextError(
            f"was generated from {read}, not from {of}",
            place=queries,
            remedy="Pass --of queries to 'qontext expand'."
            if read == "queries"
            else "Leave out --of queries.",
        )


def all_ids(source: Path | str) -> pa.ChunkedArray:
    """The ids of all passages, in order."""
    return pa.chunked_array([pa.array(ids, pa.string()) for ids in _ids(source)], pa.string())


def ids_and_documents(source: Path | str) -> Iterator[tuple[pa.Array, pa.Array]]:
    """The ids of passages and of their documents, many at a time."""
    path = existing(source, "passages")
    if is_parquet(path):
        for batch in records.read_table(path, records.PASSAGES, columns=["id", "doc"]):
            yield batch["id"], batch["doc"]
        return
    passages = read_passages(path)
    while some := list(islice(passages, _BATCH)):
        yield pa.array([p.id for p in some], pa.string()), pa.array([p.doc for p in some], pa.string())


def _ids(source: Path | str) -> Iterator[list[str]]:
    path = existing(source, "passages")
    if is_parquet(path):
        for batch in records.read_table(path, records.PASSAGES, columns=["id"]):
            yield batch.column("id").to_pylist()
        return
    ids = (passage.id for passage in read_passages(path))
    while batch_of_ids := list(islice(ids, _BATCH)):
        yield batch_of_ids
