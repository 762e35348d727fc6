"""The small vocabulary that every stage speaks, and the Parquet columns in which it is written down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from qontext import artifacts
from qontext.errors import QontextError


@dataclass(frozen=True, slots=True)
class Document:
    """A text as its source has it. `place` says where it stands (``docs.jsonl:17``), for error messages.

    `passages` holds (id, text) of parts that the source itself already separates; they are kept as they
    are with `--keep`. Without it, they are paragraphs: their text is joined and split anew.
    """

    id: str
    title: str
    text: str
    place: str = ""
    passages: tuple[tuple[str, str], ...] = ()


class Query(NamedTuple):
    """A question with its id."""

    id: str
    text: str


class Qrel(NamedTuple):
    """A judgement: how relevant (0 = not at all) the passage is to the query."""

    query: str
    passage: str
    grade: int


class Hit(NamedTuple):
    """A passage that a search returned for a query, with its score; ranks are by score, ties by id."""

    query: str
    passage: str
    score: float


PASSAGES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("doc", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        # Where each sentence starts, in characters of `text`; the first is 0.
        pa.field("sentences", pa.list_(pa.int32()), nullable=False),
        # Length in tokens of the splitting tokenizer, special tokens included.
        pa.field("tokens", pa.int32(), nullable=False),
        # A single sentence longer than the limit: it is cropped when it is read for training.
        pa.field("overlong", pa.bool_(), nullable=False),
    ]
)
"""Passages in corpus order: those of one document stand together, by position."""

QUERIES = pa.schema(
    [
        pa.field("passage", pa.string(), nullable=False),
        pa.field("query", pa.string(), nullable=False),
        # Which of the passage's queries this is, from 0.
        pa.field("number", pa.int32(), nullable=False),
    ]
)
"""Generated queries in passage order. Filters add score columns after these."""


def read_table(
    source: Path | str, schema: pa.Schema, *, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of an artifact's (or folder's, or file's) Parquet parts, in order, a batch at a time."""
    fields = [field for field in schema if columns is None or field.name in columns]
    for path in parquet_parts(source):
        file = open_parquet(path)
        for field in fields:
            if field.name not in file.schema_arrow.names:
                raise QontextError(
                    f"has no column {field.name!r} (it has: {', '.join(file.schema_arrow.names)})", place=path
                )
        try:
            for batch in file.iter_batches(columns=columns):
                yield _conforming(batch, fields, path)
        except (pa.ArrowInvalid, OSError) as error:
            raise _unreadable(error, path) from None


def open_parquet(path: Path) -> pq.ParquetFile:
    """The file, of which only the footer is read yet."""
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(error, path) from None


def _unreadable(error: Exception, path: Path) -> QontextError:
    return QontextError(f"not a readable Parquet file: {error}", place=path)


def _conforming(batch: pa.RecordBatch, fields: list[pa.Field], path: Path) -> pa.RecordBatch:
    """The batch with its columns in the schema's types: other programs write ids as numbers, or texts as long strings."""
    for field in fields:
        column = batch.column(field.name)
        if column.type != field.type:
            try:
                if pa.types.is_floating(column.type):
                    raise pa.ArrowInvalid("a fraction is no id and no text")
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise QontextError(
                    f"the column {field.name!r} holds {column.type}, expected {field.type}", place=path
                ) from None
            batch = batch.set_column(batch.schema.get_field_index(field.name), field, column)
        if column.null_count and not field.nullable:
            raise QontextError(f"the column {field.name!r} has empty (null) values", place=path)
    return batch


def parquet_parts(source: Path | str) -> list[Path]:
    """The Parquet files of an artifact in order, of a folder by name, or the one file."""
    path = Path(source)
    if artifacts.is_artifact(path):
        parts = artifacts.open_artifact(path).parts(".parquet")
    elif path.is_dir():
        if (path / artifacts.CLAIM).exists():
            artifacts.open_artifact(path)  # says that it is not finished
        parts = sorted(path.glob("*.parquet"))
    elif path.is_file():
        return [path]
    else:
        raise QontextError("no such file or directory", place=path)
    if not parts:
        raise QontextError("holds no Parquet files", place=path)
    return parts


def write_table(path: Path, rows: pa.Table) -> None:
    """Write a Parquet part; the same rows give the same bytes."""
    pq.write_table(rows, path, compression="zstd", write_statistics=False)


def count_rows(source: Path | str) -> int:
    """Rows over all Parquet parts, from the footers alone."""
    return sum(open_parquet(part).metadata.num_rows for part in parquet_parts(source))


def table_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)
