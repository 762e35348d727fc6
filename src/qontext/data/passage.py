"""A passage for search and training, and its Parquet columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from qontext.frame.errors import QontextError

PASSAGE_COLUMNS = ["id", "title", "text", "doc"]
"""The Parquet columns that a `Passage` has."""


class Passage(NamedTuple):
    """A passage for search and training; `doc` is the id of its document."""

    id: str
    title: str
    text: str
    doc: str

    @property
    def content(self) -> str:
        """The input of encoders and BM25: title and text, joined by a space."""
        return f"{self.title} {self.text}" if self.title else self.text


def passages_of(batch: pa.RecordBatch, place: Path) -> Iterator[Passage]:
    """The passages in rows of Parquet that have the columns `PASSAGE_COLUMNS`."""
    columns = [batch.column(name).to_pylist() for name in PASSAGE_COLUMNS]
    if not all(columns[0]):
        raise QontextError("the id of a passage is empty", place=place)
    return map(Passage, *columns)
