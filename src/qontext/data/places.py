"""The places of passages, as `split` writes them: file or URL, headings, page, lines and metadata."""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qontext.frame.files import damaged, opening

if TYPE_CHECKING:
    import pyarrow as pa

    from qontext.data.collection import Passage

SEPARATOR = " › "
"""Between the parts of a path of headings, in titles and in places."""


class Place(NamedTuple):
    """The place of a passage, or of a stretch of it. Unknown values are empty, or None.

    >>> str(Place("guide.pdf", ("Install", "On Linux"), page=3))
    'guide.pdf › Install › On Linux, p. 3'
    """

    file: str = ""
    headings: tuple[str, ...] = ()
    page: int | None = None
    line: int | None = None
    last_line: int | None = None
    metadata: Mapping[str, Any] = {}
    cell: int | None = None
    last_page: int | None = None
    """The last page and cell, if there are several."""
    last_cell: int | None = None
    spans: tuple[TextPlace, ...] = ()
    """The places within a passage that has several."""

    def __str__(self) -> str:
        where = SEPARATOR.join(part for part in (self.file, *self.headings) if part)
        if self.page is not None:
            position = _range("p. ", "pp. ", self.page, self.last_page)
        elif self.cell is not None:
            position = _range("cell ", "cells ", self.cell, self.last_cell)
        elif self.line is not None and where:
            position = _range("line ", "lines ", self.line, self.last_line)
        else:
            return where
        return f"{where}, {position}" if where else position

    def within(self, text: str, begin: int, end: int) -> Place:
        """The place of the passage's text[begin:end]."""
        spans = self.spans or (TextPlace(0, (), self.page, self.line, self.last_line, self.cell),)
        starts = [span.start for span in spans]
        first = max(0, bisect.bisect_right(starts, begin) - 1)
        touched = spans[first : max(first + 1, bisect.bisect_left(starts, end))]
        pages = [span.page for span in touched if span.page is not None]
        cells = [span.cell for span in touched if span.cell is not None]
        return self._replace(
            headings=(*self.headings, *common_prefix([span.headings for span in touched])),
            page=min(pages, default=None),
            last_page=_last(pages),
            line=touched[0].line_at(text, begin),
            last_line=touched[-1].line_at(text, end),
            cell=min(cells, default=None),
            last_cell=_last(cells),
            spans=(),
        )

    def as_json(self) -> dict[str, Any]:
        """The known values, by column name."""
        fields = {name: value for name, value in self._asdict().items() if value not in ("", (), None, {})}
        fields.pop("spans", None)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


class TextPlace(NamedTuple):
    """The place of a passage's text from the character `start` on: the headings below the passage's own, and the first
    and last line, if known. Its lines are those of the text, but none is after `last_line`: a record is one line."""

    start: int
    headings: tuple[str, ...] = ()
    page: int | None = None
    line: int | None = None
    last_line: int | None = None
    cell: int | None = None

    def line_at(self, text: str, position: int) -> int | None:
        """The line of the character before or at the position."""
        if self.line is None:
            return None
        line = self.line + text.count("\n", self.start, max(self.start, position))
        return line if self.last_line is None else min(line, self.last_line)

    def continues(self, other: TextPlace, text: str) -> bool:
        """True if `other`, which precedes this one, says all that this one does."""
        if self.line is None or other.line is None:
            is_next = self.line == other.line
        else:
            is_next = self.line == other.line + text.count("\n", other.start, self.start)
        return is_next and self._replace(start=0, line=0, last_line=0) == other._replace(
            start=0, line=0, last_line=0
        )


def joined(spans: Iterable[TextPlace], text: str) -> tuple[TextPlace, ...]:
    """The spans of a passage, without those that follow from the one before."""
    result: list[TextPlace] = []
    for span in spans:
        if result and span.continues(result[-1], text):
            result[-1] = result[-1]._replace(last_line=span.last_line)
        else:
            result.append(span)
    return tuple(result)


def common_prefix(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The headings with which all paths begin."""
    same = itertools.takewhile(lambda names: len({*names}) == 1, zip(*paths))
    return tuple(names[0] for names in same)


def _last(numbers: list[int]) -> int | None:
    """The largest number, if there are several."""
    return max(numbers) if numbers and max(numbers) > min(numbers) else None


def _range(one: str, several: str, first: int, last: int | None) -> str:
    return f"{several}{first}–{last}" if last is not None and last > first else f"{one}{first}"


class Found(NamedTuple):
    """A passage with its place, and where its sentences start, if known."""

    passage: Passage
    place: Place = Place()
    sentences: tuple[int, ...] = ()


def find_passages(source: Path | str, ids: Collection[str]) -> dict[str, Found]:
    """The passages with these ids. Only the id column is scanned; other columns are read for hits only."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from qontext.data import records
    from qontext.data.collection import Passage, read_passages

    path = Path(source)
    if not ids:
        return {}
    if not is_table(path):
        requested = {*ids}
        return {p.id: Found(p) for p in read_passages(path) if p.id in requested}
    passages, wanted_ids = {}, _strings(ids)
    for part in records.parquet_parts(path):
        file = records.open_parquet(part)
        there = file.schema_arrow.names
        columns = [
            "id",
            "title",
            "text",
            "doc",
            "sentences",
            *(name for name in records.PLACES.names if name in there),
        ]
        rows: list[dict[str, Any]] = []
        with opening(part, "a readable Parquet file with passages"):
            # Not `read_table` with a filter, which imports PyArrow's data sets.
            for group in range(file.num_row_groups):
                own = file.read_row_group(group, ["id"])["id"].cast(pa.string())  # others write numbers
                is_wanted = pc.is_in(own, wanted_ids)
                if pc.any(is_wanted).as_py():
                    rows += file.read_row_group(group, columns).filter(is_wanted).to_pylist()
        for row in rows:
            id, title, text, doc = (row.pop(name) for name in ("id", "title", "text", "doc"))
            passage = Passage(str(id), title, text, str(id if doc is None else doc))
            sentences = tuple(row.pop("sentences", None) or ())
            passages[passage.id] = Found(passage, place_of(row, part), sentences)
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
    fields["headings"] = tuple(fields.get("headings", ()))
    fields["metadata"] = parsed(fields.get("metadata") or "{}", source)
    spans = tuple(
        TextPlace(**{**span, "headings": tuple(span["headings"])}) for span in fields.pop("spans", ())
    )
    pages = [span.page for span in spans if span.page is not None]
    cells = [span.cell for span in spans if span.cell is not None]
    return Place(**fields, last_page=_last(pages), last_cell=_last(cells), spans=spans)


def parsed(metadata: str, source: Path) -> dict[str, Any]:
    """The object in a cell of the column `metadata`."""
    try:
        value = json.loads(metadata)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise damaged(source, f"its metadata is not a JSON object: {metadata[:40]!r}")
    return value


def read_columns(
    source: Path | str, columns: Collection[str] | None = None
) -> Iterator[tuple[Path, pa.RecordBatch]]:
    """(file, rows) of a table of passages, with the columns `id`, `title` and `doc`, and `sentences` and the place
    columns where there are any, or those of them that are named."""
    import pyarrow as pa

    from qontext.data import records

    for part in records.parquet_parts(source):
        there = records.open_parquet(part).schema_arrow.names
        schema = pa.schema([*records.PASSAGES, *(field for field in records.PLACES if field.name in there)])
        names = [name for name in ("sentences", *records.PLACES.names) if name in there]
        names = ["id", "title", "doc", *names]
        if columns is not None:
            names = [name for name in names if name in columns]
        for batch in records.read_table(part, schema, columns=names):
            yield part, batch


def is_table(path: Path) -> bool:
    """True if the passages are in Parquet files, which have places, rather than in files of a labeled set."""
    if path.is_dir():
        return not any(path.glob("corpus.jsonl*"))
    return path.suffix == ".parquet"
