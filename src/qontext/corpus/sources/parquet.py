"""Parquet files: one record per row, with the same fields as in JSON Lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from qontext.corpus.sources import fields
from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.corpus.sources.fields import Fields, Record
from qontext.data import records
from qontext.data.records import Document

_ROWS = 1024


class Parquet(Source):
    """The rows of one or more files."""

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
                            place = f"{path}: row {number}"
                            if isinstance(row, UnicodeDecodeError):
                                yield Problem(place, "wrong encoding", "contains text that is not UTF-8")
                            else:
                                yield self.fields.read(row, place)
                        self.bytes_read = behind + size * number // file.metadata.num_rows
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
