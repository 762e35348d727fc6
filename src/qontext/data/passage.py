"""A passage for search and training, its Parquet columns, and its metadata.

Metadata are fields of a record, a file's folder and date, as one JSON object. Values are strings, numbers, booleans, dates
as strings, and lists of these. Longer values and other types are dropped.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from qontext.frame.errors import QontextError

if TYPE_CHECKING:
    import pyarrow as pa

PASSAGE_COLUMNS = ["id", "title", "text", "doc"]
"""The Parquet columns that a `Passage` has."""

TitleRule = Literal["prepend", "leave", "sep"]
"""The rule for a passage's title in the input of models: see `models.tokenizer`."""

RowKind = Literal["passages", "queries"]
"""The texts of a collection to read as passages; its queries are passages without a title."""


class Passage(NamedTuple):
    """A passage for search and training; `doc` is the id of its document."""

    id: str
    title: str
    text: str
    doc: str

    @property
    def content(self) -> str:
        """Title and text, joined by a space, as BM25 reads it, and people."""
        return self.joined(" ")

    def joined(self, between: str | None) -> str:
        """The input of a model: title and text with `between` between them; None leaves out the title."""
        return self.text if between is None or not self.title else f"{self.title}{between}{self.text}"


def passages_of(batch: pa.RecordBatch, place: Path) -> Iterator[Passage]:
    """The passages in rows of Parquet that have the columns `PASSAGE_COLUMNS`."""
    columns = [batch.column(name).to_pylist() for name in PASSAGE_COLUMNS]
    if not all(columns[0]):
        raise QontextError("the id of a passage is empty", place=place)
    return map(Passage, *columns)


LONGEST, MOST_ITEMS, MOST_FIELDS = 1_000, 100, 64
"""Maximum characters per value, values per list, and fields per object."""


def as_json(values: Mapping[str, Any]) -> str:
    """The fields with valid values, as a JSON object with sorted names."""
    fields = {name: _plain(value) for name, value in itertools.islice(values.items(), MOST_FIELDS)}
    fields = {name: value for name, value in fields.items() if _is_kept(name) and _is_kept(value)}
    return json.dumps(fields, ensure_ascii=False, sort_keys=True) if fields else "{}"


def common(objects: list[str]) -> str:
    """The fields that all objects have with the same values."""
    if len({*objects}) == 1:
        return objects[0]
    parsed = [json.loads(text) for text in objects]
    first = parsed[0]
    shared = {k: v for k, v in first.items() if all(k in other and other[k] == v for other in parsed[1:])}
    return as_json(shared)


def _plain(value: Any) -> Any:
    """Dates in ISO format, which sorts chronologically."""
    return value.isoformat() if isinstance(value, datetime.date) else value


def _is_kept(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST and "\0" not in value and _is_writable(value)
    if isinstance(value, bool | int):
        return abs(value) < 1 << 63
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return len(value) <= MOST_ITEMS and all(not isinstance(v, list) and _is_kept(v) for v in value)
    return False


def _is_writable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
