"""Files of records: JSON Lines, tab-separated values, Parquet. A record is a document, a document with paragraphs, or a
passage of a document.

Tab-separated files have the layouts of published collections, detected from the first line:

- ``id text``: passages (MS MARCO's collection.tsv), no header.
- ``id title text``: passages with titles (RocketQA's MS MARCO), no header.
- ``id url title body``: documents (MS MARCO's msmarco-docs.tsv), no header.
- a header with the column names, as in DPR's psgs_w100.tsv (``id text title``), where consecutive passages
  of one title are a document. Such files are written by a CSV writer, so they may quote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from qontext.corpus.sources import fields
from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.corpus.sources.fields import Fields, Record
from qontext.corpus.sources.lines import read_lines
from qontext.data import records
from qontext.data.dpr import columns
from qontext.data.ids import unescape
from qontext.data.records import Document, repeated
from qontext.frame.errors import QontextError

_decode = JSONDecoder().decode


class JsonLines(Source):
    """The objects of one or more files, one per line, read as if concatenated."""

    def __init__(self, name: str, files: Sequence[Path], names: FieldNames, encoding: str) -> None:
        super().__init__(name, has_passages=True, bytes_total=sum(file.stat().st_size for file in files))
        self.files, self.fields, self.encoding = files, Fields(names), encoding

    def documents(self) -> Iterator[Document | Problem]:
        return fields.documents(self._records())

    def _records(self) -> Iterator[Record | Problem]:
        for path in self.files:
            for number, line in read_lines(path, self.encoding, self.advance):
                if isinstance(line, Problem):
                    yield line
                elif line and not line.isspace():
                    yield self._record(line, f"{path}:{number}")

    def _record(self, line: str, place: str) -> Record | Problem:
        try:
            value = _decode(line)
        except JSONDecodeError as error:
            return Problem(
                place,
                "broken JSON",
                f"{error.msg} at character {error.pos}; each line must hold one JSON object",
            )
        except (ValueError, RecursionError) as error:
            return Problem(place, "broken JSON", str(error))
        if not isinstance(value, dict):
            return Problem(place, "not an object", f"expected a JSON object, found {type(value).__name__}")
        # NUL and lone surrogates pass decoding only as JSON escapes (\u…).
        return self.fields.read(value, place, clean="\\u" not in line)


_PASSAGES, _TITLED, _DOCUMENTS = ["id", "text"], ["id", "title", "text"], ["id", "url", "title", "text"]
_DPR = ["id", "text", "title"]


class Tsv(Source):
    """The rows of one or more tab-separated files of the same layout."""

    def __init__(self, name: str, files: Sequence[Path], names: FieldNames, encoding: str) -> None:
        first = next((line for _, line in read_lines(files[0], encoding, lambda amount: None)), "")
        if isinstance(first, Problem):
            raise QontextError(first.message, place=first.place, remedy="Check the file, and --encoding.")
        self.fields = Fields(names)
        self.header = _header(first, self.fields)
        self.columns = self.header or _layout(first, f"{files[0]}:1")
        if again := repeated(self.columns):
            raise QontextError(
                f"has several columns named {again!r}", place=f"{files[0]}:1", remedy="Rename or drop one."
            )
        super().__init__(
            name,
            has_passages=self.columns != _DOCUMENTS,
            has_ids=True,
            bytes_total=sum(file.stat().st_size for file in files),
        )
        self.files, self.encoding = files, encoding

    def documents(self) -> Iterator[Document | Problem]:
        if self.columns == _DOCUMENTS:
            return fields.whole(self._records())
        if self.columns == _DPR:
            return fields.documents(by_title(self._records()))
        return fields.documents(self._records())

    def _records(self) -> Iterator[Record | Problem]:
        reader = self.fields if self.header else Fields(FieldNames("id", "title", "text", doc=""))
        ids = {*reader.id, *reader.doc} & {*self.columns}
        for path in self.files:
            for number, line in read_lines(path, self.encoding, self.advance):
                if isinstance(line, Problem):
                    yield line
                elif line and not (number == 1 and self.header and line.split("\t") == self.header):
                    values = columns(line) if self.header else line.split("\t")
                    place = f"{path}:{number}"
                    if len(values) == len(self.columns):
                        row = dict(zip(self.columns, values))
                        row |= {name: unescape(row[name]) for name in ids}
                        yield reader.read(row, place)
                    else:
                        expected = f"{len(self.columns)} ({', '.join(self.columns)})"
                        yield Problem(
                            place, "wrong columns", f"has {len(values)} columns, expected {expected}"
                        )


def by_title(records: Iterator[Record | Problem]) -> Iterator[Record | Problem]:
    """Join consecutive passages of one title into a document, whose id is that of its first passage."""
    title, doc = "", ""
    for record in records:
        if isinstance(record, Record):
            if record.title != title or not title:
                title, doc = record.title, record.id
            record = record._replace(doc=doc)
        yield record


def _header(line: str, names: Fields) -> list[str] | None:
    """The columns named in the first line, if it is a header."""
    columns = line.split("\t")
    return columns if {*columns} & {*names.id} and {*columns} & {*names.text} else None


def _layout(line: str, place: str) -> list[str]:
    columns = line.count("\t") + 1 if line else 0
    for layout in (_PASSAGES, _TITLED, _DOCUMENTS):
        if len(layout) == columns or not line:
            return layout
    raise QontextError(
        f"its first line has {columns} columns and is not a header with an id and a text column",
        place=place,
        remedy="Expected 'id text', 'id title text' or 'id url title body', or a header such as 'id text title'.",
    )


_ROWS = 1024


class ParquetRecords(Source):
    """The rows of one or more Parquet files, with the same fields as in JSON Lines."""

    def __init__(self, name: str, files: Sequence[Path], names: FieldNames) -> None:
        super().__init__(name, has_passages=True, bytes_total=sum(file.stat().st_size for file in files))
        self.files, self.fields = files, Fields(names)
        with records.open_parquet(files[0]) as file:
            self.fields.check(file.schema_arrow.names, files[0])

    def documents(self) -> Iterator[Document | Problem]:
        return fields.documents(self._records())

    def _records(self) -> Iterator[Record | Problem]:
        for path in self.files:
            number, behind, size = 0, self.bytes_read, path.stat().st_size
            try:
                # Without these two settings a whole row group is held in memory.
                with pq.ParquetFile(
                    records.parquet_source(path), pre_buffer=False, buffer_size=1 << 20
                ) as file:
                    columns = self.fields.columns(file.schema_arrow)
                    if again := records.repeated(columns):
                        yield Problem(str(path), "wrong columns", f"has several columns named {again!r}")
                        continue
                    for batch in file.iter_batches(_ROWS, columns=columns):
                        for row in _rows(batch):
                            number += 1
                            self.bytes_read = behind + size * number // file.metadata.num_rows
                            place = f"{path}: row {number}"
                            if isinstance(row, UnicodeDecodeError):
                                yield Problem(place, "wrong encoding", "contains text that is not UTF-8")
                            else:
                                yield self.fields.read(row, place)
            except records.UNREADABLE as error:
                message = f"cannot be read from here on: {error}"
                yield Problem(f"{path}: row {number + 1}", "damaged file", message)


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | UnicodeDecodeError]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        for i in range(batch.num_rows):
            try:
                yield batch.slice(i, 1).to_pylist()[0]
            except UnicodeDecodeError as error:
                yield error
