"""Passages, queries, judgments and runs as plain Python objects, from every format that the commands read; and rows
[first, last) of passages, for a worker that makes one part.

Parquet files are opened where the rows begin; of a text file, and only of such a file, the lines before them are read, too.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from qontext.data import records
from qontext.data.collection import (
    Passage,
    Qrels,
    is_parquet,
    load_collection,
    read_passages,
    read_qrels,
    read_queries,
)
from qontext.data.ids import SeenIds
from qontext.data.passage import PASSAGE_COLUMNS, RowKind, passages_of
from qontext.data.records import Hit
from qontext.data.runs import Run
from qontext.frame import artifacts
from qontext.frame.config import existing
from qontext.frame.errors import QontextError
from qontext.frame.files import StrPath

AnyRun: TypeAlias = "Run | Mapping[str, Mapping[str, float]] | StrPath"
"""A run; or in memory as query → passage → score; or a TREC run file or output directory of a search."""
_BATCH = 16_384
_RUNS = "Pass a Run, a path, or query → passage → score."
_QRELS = "Pass a path, or query → passage → grade, an integer."


def load_passages(source: StrPath) -> list[Passage]:
    """Load passages: JSON Lines (``_id``, ``title``, ``text``), TSV, Parquet, a BEIR folder, or what `split` wrote.

    Every record is one passage. To cut long documents into passages, run `qontext split` first.

    >>> passages = load_passages("docs.jsonl")
    >>> passages[0].id, passages[0].title
    ('d0', 'Chapter 0')
    """
    return list(read_passages(Path(source)))


def load_queries(source: StrPath) -> dict[str, str]:
    """Load queries as id → text: JSON Lines, TSV, Parquet, a BEIR folder, or what `generate` wrote.

    >>> load_queries("data")["q0"]
    'chapter 0 river'
    """
    return read_queries(Path(source))


def load_qrels(source: StrPath, *, split: str = "test") -> Qrels:
    """Load judgments as query → passage → grade: a qrels file (BEIR or TREC), or the `split` of a BEIR folder.

    >>> load_qrels("data", split="test")["q25"]
    {'p25': 1}
    """
    path = Path(source)
    return load_collection(path).qrels(split) if path.is_dir() else read_qrels(path)


def as_run(one: AnyRun) -> Run:
    """A run as it is; one of a file or directory; or one of query → passage → score."""
    if isinstance(one, Run):
        return one
    if isinstance(one, str | os.PathLike):
        return Run.read(one)
    if not isinstance(one, Mapping):
        raise QontextError(f"expected a run, not a {type(one).__name__}", remedy=_RUNS)
    rows = []
    for query, scores in one.items():
        if not isinstance(scores, Mapping):
            raise QontextError(
                f"the results of query {query!r} are a {type(scores).__name__}, not passage → score",
                remedy=_RUNS,
            )
        rows += [(query, passage, score) for passage, score in scores.items()]
    try:
        return Run.of([Hit(str(query), str(passage), float(score)) for query, passage, score in rows])
    except (TypeError, ValueError) as error:
        raise QontextError(f"a score of the run is not a number: {error}", remedy=_RUNS) from None


def as_qrels(judged: Mapping[str, Mapping[str, int]]) -> Qrels:
    """Judgments in memory, as query → passage → grade, with ids as text."""
    if not isinstance(judged, Mapping):
        raise QontextError(f"expected judgments, not a {type(judged).__name__}", remedy=_QRELS)
    for query, grades in judged.items():
        if not isinstance(grades, Mapping):
            kind = type(grades).__name__
            raise QontextError(f"the judgments of query {query!r} are a {kind}", remedy=_QRELS)
        if wrong := [grade for grade in grades.values() if not _is_whole(grade)]:
            raise QontextError(f"the grade {wrong[0]!r} of query {query!r} is no integer", remedy=_QRELS)
    return {str(q): {str(p): int(grade) for p, grade in grades.items()} for q, grades in judged.items()}


def _is_whole(grade: object) -> bool:
    return isinstance(grade, int | float | np.number | np.bool_) and float(grade).is_integer()


def as_texts(items: Sequence[Any], what: str) -> Sequence[Any]:
    """The items, if they are a sequence: a single text would be taken for its characters."""
    if isinstance(items, str | Mapping):
        kind = "a single text" if isinstance(items, str) else f"a {type(items).__name__}"
        raise QontextError(f"expected a list of {what}, not {kind}", remedy="Write [text].")
    return items


def as_passages(items: Iterable[Passage | str], ids: Sequence[str] | None = None) -> Iterator[Passage]:
    """Passages unchanged; plain texts become passages with the given `ids`, or numbered from 0."""
    if isinstance(items, str):
        raise QontextError(
            f"expected passages, not the string {items!r}", remedy="Read a file with load_passages."
        )
    number = -1
    for number, item in enumerate(items):
        if isinstance(item, Passage):
            yield item
            continue
        if not isinstance(item, str):
            raise QontextError(
                f"expected passages or texts, not {type(item).__name__}",
                remedy="Write Passage(id, title, text, document), or read a file with load_passages.",
            )
        if ids is not None and number >= len(ids):
            raise QontextError(f"got more texts than ids ({len(ids)})")
        id = str(number) if ids is None else ids[number]
        yield Passage(id, "", item, id)
    if ids is not None and number + 1 != len(ids):
        raise QontextError(f"got {len(ids)} ids for {number + 1} texts")


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
    if artifacts.is_artifact(source) and artifacts.open_artifact(source).verb == "split":
        return records.count_rows(source)
    seen, count = SeenIds(), 0
    for ids in _ids(source):
        if any(repeated := seen.repeated(ids)):
            raise QontextError(f"the {what} {ids[repeated.index(True)]!r} occurs twice", place=source)
        count += len(ids)
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
