"""Files of records: JSON Lines, tab-separated values, Parquet. A record is a passage of the document in its `doc` field,
or a document with paragraphs, or otherwise a document with a single passage.

Tab-separated files have the layouts of published collections, detected from the first line:

- ``id text``: passages (MS MARCO's collection.tsv), no header.
- ``id title text``: passages with titles (RocketQA's MS MARCO), no header.
- ``id url title body``: documents (MS MARCO's msmarco-docs.tsv), no header.
- a header with the column names, as in DPR's psgs_w100.tsv (``id text title``), where consecutive passages
  of one title are a document. Such files are written by a CSV writer, so they may quote.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.data import records
from qontext.data.dpr import columns
from qontext.data.ids import unescape
from qontext.data.lines import LineError, each_line
from qontext.data.passage import as_json, common
from qontext.data.records import Document
from qontext.frame.errors import QontextError

_ROWS = 1024


class Record(NamedTuple):
    """A valid record; `doc` is None if it is a separate document."""

    id: str
    title: str
    passages: tuple[tuple[str, str], ...]
    place: str
    doc: str | None = None
    metadata: str = "{}"


class Fields:
    """Reads records by the configured field names."""

    def __init__(self, names: FieldNames) -> None:
        self.id, self.title, self.text, self.paragraphs, self.doc = (
            tuple(alternatives.split("|"))
            for alternatives in (names.id, names.title, names.text, names.paragraphs, names.doc)
        )
        self.all = {*self.id, *self.title, *self.text, *self.paragraphs, *self.doc}

    def check(self, there: Collection[str], place: str | Path) -> None:
        """Refuse a table that has no column for the id or the text."""
        for what, names in (("id", self.id), ("text", (*self.text, *self.paragraphs))):
            if not {*there} & {*names}:
                looked_for = f"looked for {', '.join(names)}; it has {', '.join(there)}"
                raise QontextError(
                    f"has no {what} column ({looked_for})", place=place, remedy=f"Use --fields {what}=NAME."
                )

    def read(self, record: Mapping[str, Any], place: str) -> Record | Problem:
        """Validate the record and extract its fields. An integer is accepted as an id; no other types are converted."""
        _, title = _first(record, self.title)
        doc_name, doc = _first(record, self.doc)
        _, paragraphs = _first(record, self.paragraphs)
        id_name, id = _first(record, self.id)
        _, text = _first(record, self.text)
        if id in (None, "") or (text is None and paragraphs is None):
            what = "id" if id in (None, "") else "text"
            names, there = ", ".join(getattr(self, what)), ", ".join(map(str, record))
            message = f"has no {what} (looked for {names}; it has {there[:300] or 'nothing'})"
            return Problem(place, "missing field", message)
        # Without another id, the document's id was used as the record's id.
        doc = None if doc_name == id_name or doc == "" or paragraphs is not None else doc
        ids = [str(one) if type(one) is int else one for one in (id, "" if doc is None else doc)]
        parts = [text] if paragraphs is None else paragraphs if isinstance(paragraphs, list) else [None]
        texts = [*ids, "" if title is None else title, *parts]
        if wrong := next((type(one).__name__ for one in texts if not isinstance(one, str)), None):
            return Problem(place, "wrong type", f"its id, title or text is not text, but {wrong}")
        if any("\0" in one for one in texts):
            return Problem(place, "NUL bytes", "its text contains NUL characters")
        if not all(map(_is_writable, texts)):
            return Problem(place, "wrong encoding", "contains a lone surrogate")
        own = ids[0]
        filled = (part for part in parts if part and not part.isspace())
        numbered = tuple((f"{own}#{n}", part) for n, part in enumerate(filled))
        passages = ((own, text),) if paragraphs is None else numbered
        return Record(own, texts[2], passages, place, ids[1] or None, self._metadata(record))

    def _metadata(self, record: Mapping[str, Any]) -> str:
        """The other fields, and those of an object `metadata`, as BEIR's sets have one."""
        others = {name: value for name, value in record.items() if name not in self.all}
        nested = others.pop("metadata", None)
        return as_json({**nested, **others} if isinstance(nested, dict) else others)


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str | None, Any]:
    for name in names:
        if (value := record.get(name)) is not None:
            return name, value
    return None, None


def _is_writable(text: str) -> bool:
    """False with lone surrogates, which JSON can escape."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def documents(records: Iterable[Record | Problem]) -> Iterator[Document | Problem]:
    """Join consecutive records of one document. Problems precede the document that surrounds them."""
    group: list[Record] = []
    for record in records:
        if isinstance(record, Problem):
            yield record
            continue
        if group and (record.doc is None or record.doc != group[0].doc):
            yield _document(group)
            group = []
        group.append(record)
    if group:
        yield _document(group)


def _document(group: list[Record]) -> Document:
    """Join the records of one document. Its metadata are the fields that all of them share."""
    first = group[0]
    passages = tuple(passage for record in group for passage in record.passages)
    metadata = common([record.metadata for record in group])
    differ = any(record.metadata != metadata for record in group)
    return Document(
        first.id if first.doc is None else first.doc,
        first.title,
        "",
        first.place,
        passages,
        metadata=metadata,
        passage_metadata=tuple(r.metadata for r in group for _ in r.passages) if differ else (),
        passage_places=tuple(r.place for r in group for _ in r.passages) if len(group) > 1 else (),
    )


def whole(records: Iterable[Record | Problem]) -> Iterator[Document | Problem]:
    """Records that are documents, not passages."""
    for record in records:
        if isinstance(record, Problem):
            yield record
        else:
            text = record.passages[0][1]
            yield Document(record.id, record.title, text, record.place, metadata=record.metadata)


def by_title(records: Iterator[Record | Problem]) -> Iterator[Record | Problem]:
    """Join consecutive passages of one title into a document, whose id is that of its first passage."""
    title, doc = "", ""
    for record in records:
        if isinstance(record, Record):
            if record.title != title or not title:
                title, doc = record.title, record.id
            record = record._replace(doc=doc)
        yield record


class _Records(Source):
    """The records of one or more files of the same layout, read as if concatenated."""

    def __init__(self, name: str, files: Sequence[Path], names: FieldNames, encoding: str) -> None:
        total = sum(file.stat().st_size for file in files)
        super().__init__(name, has_passages=True, bytes_total=total)
        self.files, self.fields, self.encoding = files, Fields(names), encoding

    def documents(self) -> Iterator[Document | Problem]:
        return documents(self._records())

    def _records(self) -> Iterator[Record | Problem]:
        for path in self.files:
            yield from self._of(path)

    def _of(self, path: Path) -> Iterator[Record | Problem]:
        for number, line in each_line(path, self.encoding, self.advance):
            if isinstance(line, LineError):
                yield Problem(line.place or "", line.kind, line.message)
            elif record := self._read(line, number, f"{path}:{number}"):
                yield record

    def _read(self, line: str, number: int, place: str) -> Record | Problem | None:
        raise NotImplementedError


class JsonLines(_Records):
    """The objects of files, one per line."""

    def _read(self, line: str, number: int, place: str) -> Record | Problem | None:
        if line.isspace():
            return None
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            return Problem(place, "broken JSON", f"{error}; each line must hold one JSON object")
        if isinstance(value, dict):
            return self.fields.read(value, place)
        return Problem(place, "broken JSON", f"expected a JSON object, found {type(value).__name__}")


_PASSAGES, _TITLED, _DOCUMENTS = ["id", "text"], ["id", "title", "text"], ["id", "url", "title", "text"]
_DPR = ["id", "text", "title"]


class Tsv(_Records):
    """The rows of tab-separated files."""

    def __init__(self, name: str, files: Sequence[Path], names: FieldNames, encoding: str) -> None:
        super().__init__(name, files, names, encoding)
        first = next((line for _, line in each_line(files[0], encoding)), "")
        if isinstance(first, LineError):
            raise first
        named = first.split("\t")
        is_header = bool({*named} & {*self.fields.id}) and bool({*named} & {*self.fields.text})
        self.header = first if is_header else None
        self.columns = named if is_header else _layout(first, f"{files[0]}:1")
        self.has_passages, self.has_ids = self.columns != _DOCUMENTS, True
        self.reader = self.fields if is_header else Fields(FieldNames("id", "title", "text", doc=""))
        self.ids = {*self.reader.id, *self.reader.doc} & {*self.columns}

    def documents(self) -> Iterator[Document | Problem]:
        if self.columns == _DOCUMENTS:
            return whole(self._records())
        return documents(by_title(self._records()) if self.columns == _DPR else self._records())

    def _read(self, line: str, number: int, place: str) -> Record | Problem | None:
        if number == 1 and line == self.header:
            return None
        values = columns(line) if self.header else line.split("\t")
        if len(values) != len(self.columns):
            message = f"has {len(values)} columns, expected {len(self.columns)} ({', '.join(self.columns)})"
            return Problem(place, "wrong columns", message)
        row = dict(zip(self.columns, values))
        return self.reader.read(row | {name: unescape(row[name]) for name in self.ids}, place)


def _layout(line: str, place: str) -> list[str]:
    columns = line.count("\t") + 1 if line else 0
    for layout in (_PASSAGES, _TITLED, _DOCUMENTS):
        if len(layout) == columns or not line:
            return layout
    raise QontextError(
        f"its first line has {columns} columns and is not a header with an id and a text column",
        place=place,
        remedy="Expected 'id text', 'id title text' or 'id url title body', or a header such as 'id text title'.",
    )


class ParquetRecords(_Records):
    """The rows of Parquet files, with the same fields as in JSON Lines."""

    def __init__(self, name: str, files: Sequence[Path], names: FieldNames, encoding: str) -> None:
        super().__init__(name, files, names, encoding)
        with records.open_parquet(files[0]) as file:
            self.fields.check(file.schema_arrow.names, files[0])

    def _of(self, path: Path) -> Iterator[Record | Problem]:
        number, behind, size = 0, self.bytes_read, path.stat().st_size
        try:
            # Without these two settings a whole row group is held in memory.
            with pq.ParquetFile(records.parquet_source(path), pre_buffer=False, buffer_size=1 << 20) as file:
                names = [f.name for f in file.schema_arrow if f.name in self.fields.all or _is_plain(f.type)]
                for batch in file.iter_batches(_ROWS, columns=names):
                    for row in batch.to_pylist():
                        number += 1
                        self.bytes_read = behind + size * number // file.metadata.num_rows
                        yield self.fields.read(row, f"{path}: row {number}")
        except records.UNREADABLE as error:
            message = f"cannot be read from here on: {error}"
            yield Problem(f"{path}: row {number + 1}", "damaged file", message)


def _is_plain(kind: pa.DataType) -> bool:
    """True if a column contains strings, numbers, booleans or dates, or lists of strings."""
    if pa.types.is_dictionary(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_text(kind.value_type)
    types = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_date,
        pa.types.is_timestamp,
    )
    return _is_text(kind) or any(is_kind(kind) for is_kind in types)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
