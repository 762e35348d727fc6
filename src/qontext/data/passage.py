"""A passage for search and training, and its Parquet columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from qontext.frame.errors import QontextError

if TYPE_CHECKING:
    import pyarrow as pa

PASSAGE_COLUMNS = ["id", "title", "text", "doc"]
"""The Parquet columns that a `Passage` has."""

TitleRule = Literal["prepend", "leave", "sep"]
"""The rule for a passage's title in the input of models: see `models.titles`."""

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
