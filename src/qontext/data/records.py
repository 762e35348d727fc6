"""The records that all stages share, and their Parquet columns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from qontext.frame import artifacts
from qontext.frame.errors import QontextError, first_line, printable
from qontext.frame.files import damaged, misfit, opening, require_regular


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a document's text under one heading.

    `line` is the line of the file on which it starts, `page` its page and `cell` its cell of a notebook, all from 1. A
    `tight` block follows the previous one without an empty line, as list items do. Code is split at empty lines, not into
    sentences.
    """

    text: str
    headings: tuple[str, ...] = ()
    page: int | None = None
    line: int | None = None
    tight: bool = False
    code: bool = False
    cell: int | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A text in its source. `place` is its position (``docs.jsonl:17``), for error messages. `passages` has
    (id, text) of parts that are already separate in the source, and `passage_places` their places; `--keep` keeps them
    unchanged. Otherwise they are paragraphs: their text is joined and split again. A document with headings or pages has
    `blocks` instead of a text. `file` is its path in the source, or its URL, and `metadata` a JSON object with its
    other fields; if passages differ in them, `passage_metadata` has one object for each.
    """

    id: str
    title: str
    text: str
    place: str = ""
    passages: tuple[tuple[str, str], ...] = ()
    blocks: tuple[Block, ...] = ()
    file: str = ""
    metadata: str = "{}"
    passage_metadata: tuple[str, ...] = ()
    passage_places: tuple[str, ...] = ()

    @property
    def content(self) -> str:
        """The complete text, without headings."""
        return self.text or "\n\n".join(
            [*(text for _, text in self.passages), *(block.text for block in self.blocks)]
        )


class Query(NamedTuple):
    """A question with its id."""

    id: str
    text: str


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
        # Start of each sentence, in characters of `text`; the first is 0.
        pa.field("sentences", pa.list_(pa.int32()), nullable=False),
        # Length in tokens of the splitting tokenizer, special tokens included.
        pa.field("tokens", pa.int32(), nullable=False),
        # A single sentence longer than the limit: cropped when read for training.
        pa.field("overlong", pa.bool_(), nullable=False),
    ]
)
"""Passages in corpus order: those of one document are consecutive, by position."""

PLACES = pa.schema(
    [
        # The document's path in its source, or its URL; empty if it has neither.
        pa.field("file", pa.string(), nullable=False),
        # The headings above the passage, the outermost first. The title holds them, too.
        pa.field("headings", pa.list_(pa.string()), nullable=False),
        pa.field("page", pa.int32()),
        # The first and the last line of the file, from 1.
        pa.field("line", pa.int32()),
        pa.field("last_line", pa.int32()),
        # A JSON object.
        pa.field("metadata", pa.string(), nullable=False),
        # The first cell of a notebook, from 1.
        pa.field("cell", pa.int32()),
        # The places within a text that has several, each from a character on; see `places.TextPlace`.
        pa.field(
            "spans",
            pa.list_(
                pa.struct(
                    [
                        pa.field("start", pa.int32()),
                        pa.field("headings", pa.list_(pa.string())),
                        pa.field("page", pa.int32()),
                        pa.field("line", pa.int32()),
                        pa.field("last_line", pa.int32()),
                        pa.field("cell", pa.int32()),
                    ]
                )
            ),
            nullable=False,
        ),
    ]
)
"""The places of passages: columns that `split` writes after those of `PASSAGES`. Other files may lack them."""

QUERIES = pa.schema(
    [
        pa.field("passage", pa.string(), nullable=False),
        pa.field("query", pa.string(), nullable=False),
        # Which of the passage's queries this is, from 0.
        pa.field("number", pa.int32(), nullable=False),
    ]
)
"""Generated queries in passage order. Filters add score columns after these."""

TEXTS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)
"""Queries from other programs."""

UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""Exceptions that reading a damaged Parquet file may raise."""


def read_table(
    source: Path | str, schema: pa.Schema, *, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of an artifact's (or folder's, or file's) Parquet parts, in order, a batch at a time."""
    fields = [field for field in schema if columns is None or field.name in columns]
    for path in parquet_parts(source):
        file = open_parquet(path)
        _check_columns(file.schema_arrow.names, fields, path)
        row = 0
        try:
            for batch in file.iter_batches(columns=columns):
                yield _conforming(batch, fields, path, row)
                row += len(batch)
        except UNREADABLE as error:
            raise _unreadable(error, path) from None


def read_part(path: Path, schema: pa.Schema) -> pa.Table:
    """The columns of the schema in one Parquet file, at once."""
    batches = list(read_table(path, schema, columns=schema.names))
    return pa.Table.from_batches(batches) if batches else schema.empty_table()


def read_whole(part: Path, schema: pa.Schema) -> pa.Table:
    """A part with all its columns; columns in `schema` have its types."""
    actual = open_parquet(part).schema_arrow
    for field in schema:
        if field.name in actual.names:  # if not, reading fails
            actual = actual.set(actual.get_field_index(field.name), field)
    return pa.Table.from_batches(read_table(part, schema), actual)


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) of each row of a file with arbitrary columns."""
    file, number = open_parquet(path), 0
    try:
        for batch in file.iter_batches():
            batch.validate(full=True)
            for row in batch.to_pylist():
                number += 1
                yield f"{path}: row {number}", row
    except UNREADABLE as error:
        raise _unreadable(error, path) from None


def parquet_source(path: Path) -> Path | pa.OSFile:
    """The path as pyarrow opens it, which takes a name that is not UTF-8 only as bytes."""
    return path if printable(path) == str(path) else pa.OSFile(os.fsencode(path))


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open the file, reading only its footer."""
    try:
        file = pq.ParquetFile(parquet_source(require_regular(path)))
        names = file.schema_arrow.names
    except UNREADABLE as error:
        raise _unreadable(error, path) from None
    if again := repeated(names):
        raise QontextError(f"has several columns named {again!r}", place=path, remedy="Rename or drop one.")
    return file


def repeated(names: Sequence[str]) -> str | None:
    """The first name that occurs twice, if any."""
    return next((name for n, name in enumerate(names) if name in names[:n]), None)


def read_footer(path: Path, key: bytes, shape: Any) -> Any:
    """The JSON that a stage wrote into the footer of its Parquet part."""
    metadata = open_parquet(path).schema_arrow.metadata or {}
    if key not in metadata:
        raise damaged(path, f"its footer has no {key.decode()!r}")
    with opening(path, "a Parquet file with a footer in JSON"):
        value = json.loads(metadata[key])
    if complaint := misfit(value, shape):
        raise damaged(path, f"its footer: {complaint}")
    return value


def _unreadable(error: Exception, path: Path) -> QontextError:
    if isinstance(error, PermissionError):
        return QontextError("cannot be read: permission denied", place=path)
    if path.suffix.lower() != ".parquet":
        return QontextError(
            "is not a Parquet file",
            place=path,
            remedy="Pass the output of a stage. Your own queries become one with 'qontext generate --generator file'.",
        )
    return damaged(path, f"not a readable Parquet file ({first_line(error)})")


def _check_columns(names: list[str], fields: list[pa.Field], path: Path) -> None:
    for field in fields:
        if field.name not in names:
            raise QontextError(f"has no column {field.name!r} (it has: {', '.join(names)})", place=path)


def _conforming(batch: pa.RecordBatch, fields: list[pa.Field], path: Path, first: int) -> pa.RecordBatch:
    """Cast a batch to the schema, because other programs write ids as numbers, or texts as long strings.
    `first` is the number of its first row in the file."""
    for field in fields:
        column = batch.column(field.name)
        if column.type != field.type:
            try:
                if not _may_become(column.type, field.type):
                    raise pa.ArrowNotImplementedError("another type of value")
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise QontextError(
                    f"the column {field.name!r} has the type {column.type}, expected {field.type}", place=path
                ) from None
        if column.null_count and not field.nullable:
            row = first + 1 + pc.index(column.is_null(), True).as_py()
            raise QontextError(f"the column {field.name!r} is empty (null)", place=f"{path}: row {row}")
        if pa.types.is_list(field.type) and column.flatten().null_count:
            raise QontextError(f"the column {field.name!r} has lists with empty (null) items", place=path)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise QontextError(
                f"the column {field.name!r} contains text that is not UTF-8", place=path
            ) from None
        batch = batch.set_column(batch.schema.get_field_index(field.name), field, column)
    return batch


def _may_become(actual: pa.DataType, expected: pa.DataType) -> bool:
    """True if one type can be cast to another: integers to ids, but not floats or booleans."""
    if pa.types.is_dictionary(actual):
        return _may_become(actual.value_type, expected)
    if pa.types.is_list(expected):
        is_list = any(is_kind(actual) for is_kind in (pa.types.is_list, pa.types.is_large_list))
        return is_list and _may_become(actual.value_type, expected.value_type)
    if pa.types.is_string(expected):
        text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        more = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_integer, pa.types.is_null)
        return any(is_kind(actual) for is_kind in (*text, *more))
    if pa.types.is_integer(expected):
        return bool(pa.types.is_integer(actual) or pa.types.is_null(actual))
    return bool(actual == expected)


def parquet_parts(source: Path | str) -> list[Path]:
    """The Parquet files of an artifact in order, of a folder by name, or the one file."""
    path = Path(source)
    if artifacts.is_artifact(path):
        parts = artifacts.open_artifact(path).parts(".parquet")
    elif path.is_dir():
        if (path / artifacts.CLAIM).exists():
            artifacts.open_artifact(path)  # raises if it is not finished
        parts = sorted(path.glob("*.parquet"))
    elif path.is_file():
        return [path]
    else:
        raise QontextError("no such file or directory", place=path)
    if not parts:
        raise QontextError("contains no Parquet files", place=path)
    return parts


def write_table(path: Path, rows: pa.Table) -> None:
    """Write a Parquet part; the same rows produce the same bytes."""
    pq.write_table(rows, path, compression="zstd", write_statistics=False)


def count_rows(source: Path | str) -> int:
    """The number of rows in all Parquet parts, from their footers."""
    return sum(open_parquet(part).metadata.num_rows for part in parquet_parts(source))


def table_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)
