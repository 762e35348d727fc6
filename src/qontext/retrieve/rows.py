"""The texts of passages beside their vectors, for whoever reads both: index servers and exports."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from qontext.data import records
from qontext.data.collection import read_metadata
from qontext.data.places import is_table, place_of
from qontext.frame.errors import QontextError
from qontext.retrieve.vectors import Encoded


class Row(NamedTuple):
    """A passage as other programs read it: `place` is its place as text, `metadata` a JSON object."""

    id: str
    document: str
    title: str
    text: str
    place: str
    metadata: str


def rows_of(vectors: Encoded, passages: Path | str) -> Iterator[list[Row]]:
    """The passages of each part of the vectors, in its order."""
    rows = read_rows(Path(passages))
    for ids in vectors.part_ids:
        part = list(islice(rows, len(ids)))
        if [row.id for row in part] != ids.to_pylist():
            raise QontextError(
                "does not hold the passages that were encoded, in their order",
                place=passages,
                remedy=f"Name the passages from which {vectors.artifact.path} was made.",
            )
        yield part


def read_rows(source: Path) -> Iterator[Row]:
    """All passages, in order."""
    if not is_table(source):
        for p, metadata in read_metadata(source):
            yield Row(p.id, p.doc, p.title, p.text, "", metadata)
        return
    for part in records.parquet_parts(source):
        there = records.open_parquet(part).schema_arrow.names
        places = [field for field in records.PLACES if field.name in there]
        columns = ["id", "doc", "title", "text", *(field.name for field in places)]
        schema = pa.schema([*records.PASSAGES, *places])
        for batch in records.read_table(part, schema, columns=columns):
            for row in batch.to_pylist():
                yield _row(row, part)


def _row(row: dict[str, Any], part: Path) -> Row:
    metadata = row.get("metadata") or "{}"
    place_fields = {name: row[name] for name in records.PLACES.names if name in row}
    place = str(place_of(place_fields, part))
    return Row(row["id"], row["doc"], row["title"], row["text"], place, metadata)
