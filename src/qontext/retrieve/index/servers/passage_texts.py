"""The texts of passages beside their vectors, for whoever reads both: index servers and exports."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from qontext.data import records
from qontext.data.collection import read_metadata
from qontext.data.load import TableRows
from qontext.data.passage import Passage
from qontext.data.places import is_table, place_of
from qontext.frame.errors import QontextError
from qontext.retrieve.stored import Encoded


class TextRow(NamedTuple):
    """A passage as other programs read it: `place` is its place as text, `metadata` a JSON object."""

    id: str
    document: str
    title: str
    text: str
    place: str
    metadata: str


class PassageTexts:
    """The passages of vectors, by part; a part reads its own, and of a text file the lines before them."""

    def __init__(self, vectors: Encoded, passages: Path | str) -> None:
        self.vectors, self.source = vectors, Path(passages)
        self.firsts = list(accumulate((len(part) for part in vectors.parts), initial=0))
        self.files = records.parquet_parts(self.source) if is_table(self.source) else []
        sizes = (records.open_parquet(file).metadata.num_rows for file in self.files)
        self.starts = list(accumulate(sizes, initial=0))
        self._table: tuple[Path, TableRows] | None = None
        self._place = 0
        self._stream: Iterator[tuple[Passage, str]] = iter(())

    def read(self, part: int) -> list[TextRow]:
        """The passages of this part, which must be those that were encoded."""
        first, last = self.firsts[part : part + 2]
        rows = self._of_tables(first, last) if self.files else self._of_lines(first, last)
        if [row.id for row in rows] != self.vectors.ids_of(part).to_pylist():
            raise QontextError(
                "does not hold the passages that were encoded, in their order",
                place=self.source,
                remedy=f"Name the passages from which {self.vectors.artifact.path} was made.",
            )
        return rows

    def _of_tables(self, first: int, last: int) -> list[TextRow]:
        rows = []
        for file, start, end in zip(self.files, self.starts, self.starts[1:]):
            if first < end and start < last:
                if self._table is None or self._table[0] != file:
                    self._table = file, _table(file)
                for batch in self._table[1].read(max(first, start) - start, min(last, end) - start):
                    rows += [_row(row, file) for row in batch.to_pylist()]
        return rows

    def _of_lines(self, first: int, last: int) -> list[TextRow]:
        if not self._place or first < self._place:
            self._place, self._stream = 0, read_metadata(self.source)
        some = islice(self._stream, first - self._place, last - self._place)
        self._place = last
        return [TextRow(p.id, p.doc, p.title, p.text, "", metadata) for p, metadata in some]


def _table(file: Path) -> TableRows:
    """The columns of a file that rows are made of."""
    there = records.open_parquet(file).schema_arrow.names
    places = [field for field in records.PLACES if field.name in there]
    columns = ["id", "doc", "title", "text", *(field.name for field in places)]
    return TableRows(file, pa.schema([*records.PASSAGES, *places]), columns)


def _row(row: dict[str, Any], part: Path) -> TextRow:
    metadata = row.get("metadata") or "{}"
    place_fields = {name: row[name] for name in records.PLACES.names if name in row}
    place = str(place_of(place_fields, part))
    return TextRow(row["id"], row["doc"], row["title"], row["text"], place, metadata)
