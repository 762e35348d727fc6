"""The places of passages, as `split` writes them: file or URL, headings, page, lines and metadata."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qontext.frame.damage import damaged, opening

if TYPE_CHECKING:
    import pyarrow as pa

    from qontext.data.collection import Passage

SEPARATOR = " › "
"""Between the parts of a path of headings, in titles and in places."""


class Place(NamedTuple):
    """The place of a passage. Unknown values are empty, or None.

    >>> str(Place("guide.pdf", ("Install", "On Linux"), page=3))
    'guide.pdf › Install › On Linux, p. 3'
    """

    file: str = ""
    headings: tuple[str, ...] = ()
    page: int | None = None
    line: int | None = None
    last_line: int | None = None
    metadata: Mapping[str, Any] = {}

    def __str__(self) -> str:
        where = SEPARATOR.join(part for part in (self.file, *self.headings) if part)
        if self.page is not None:
            return f"{where}, p. {self.page}" if where else f"p. {self.page}"
        if self.line is not None and where:
            several = self.last_line is not None and self.last_line > self.line
            return f"{where}, lines {self.line}–{self.last_line}" if several else f"{where}, line {self.line}"
        return where

    def as_json(self) -> dict[str, Any]:
        """The known values, by column name."""
        fields = {name: value for name, value in self._asdict().items() if value not in ("", (), None, {})}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def find_passages(source: Path | str, ids: Collection[str]) -> dict[str, tuple[Passage, Place]]:
    """The passages with these ids, and their places. Only the id column is scanned; other columns are read
    for hits only."""
    import pyarrow.compute as pc

    from qontext.data import records
    from qontext.data.collection import Passage, read_passages

    path = Path(source)
    if not ids:
        return {}
    if not is_table(path):
        requested = {*ids}
        return {p.id: (p, Place()) for p in read_passages(path) if p.id in requested}
    passages, wanted_ids = {}, _strings(ids)
    for part in records.parquet_parts(path):
        file = records.open_parquet(part)
        there = file.schema_arrow.names
        columns = ["id", "title", "text", "doc", *(name for name in records.PLACES.names if name in there)]
        rows: list[dict[str, Any]] = []
        with opening(part, "a readable Parquet file with passages"):
            # Not `read_table` with a filter, which imports PyArrow's data sets.
            for group in range(file.num_row_groups):
                is_wanted = pc.is_in(file.read_row_group(group, ["id"])["id"], wanted_ids)
                if pc.any(is_wanted).as_py():
                    rows += file.read_row_group(group, columns).filter(is_wanted).to_pylist()
        for row in rows:
            passage = Passage(row.pop("id"), row.pop("title"), row.pop("text"), row.pop("doc"))
            passages[passage.id] = (passage, place_of(row, part))
    return passages


def _strings(texts: Collection[str]) -> pa.StringArray:
    """The texts as an array. (`pyarrow.array` imports pandas where it is installed.)"""
    import numpy as np
    import pyarrow as pa

    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def place_of(row: Mapping[str, Any], source: Path) -> Place:
    """The place in the columns of a row; missing columns are unknown values."""
    fields = {name: value for name, value in row.items() if value is not None}
    headings = tuple(fields.pop("headings", ()))
    return Place(
        **{**fields, "headings": headings, "metadata": parsed(fields.get("metadata") or "{}", source)}
    )


def parsed(metadata: str, source: Path) -> dict[str, Any]:
    """The object in a cell of the column `metadata`."""
    try:
        value = json.loads(metadata)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise damaged(source, f"its metadata is not a JSON object: {metadata[:40]!r}")
    return value


def read_columns(source: Path | str) -> Iterator[tuple[Path, pa.RecordBatch]]:
    """(file, rows) of a table of passages, with the columns `id`, `title`, `doc` and its place columns."""
    import pyarrow as pa

    from qontext.data import records

    for part in records.parquet_parts(source):
        there = records.open_parquet(part).schema_arrow.names
        schema = pa.schema([*records.PASSAGES, *(field for field in records.PLACES if field.name in there)])
        names = ["id", "title", "doc", *(name for name in records.PLACES.names if name in there)]
        for batch in records.read_table(part, schema, columns=names):
            yield part, batch


def is_table(path: Path) -> bool:
    """Whether the passages are in Parquet files, which have places, rather than in files of a labeled set."""
    if path.is_dir():
        return not any(path.glob("corpus.jsonl*"))
    return path.suffix == ".parquet"
