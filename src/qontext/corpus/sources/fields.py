"""Records (of JSON Lines, Parquet, headed TSV, data sets) → documents.

A record is a passage of the document in its `doc` field, or a document with paragraphs, or otherwise a
document with a single passage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from qontext.corpus.sources.base import FieldNames, Problem
from qontext.data.passage import as_json, common
from qontext.data.records import Document
from qontext.frame.errors import QontextError


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

    @cached_property
    def all(self) -> set[str]:
        return {*self.id, *self.title, *self.text, *self.paragraphs, *self.doc}

    def columns(self, schema: pa.Schema) -> list[str]:
        """The columns to read: those of the fields, and those whose values can be metadata."""
        return [field.name for field in schema if field.name in self.all or _is_plain(field.type)]

    def check(self, columns: Collection[str], place: str | Path) -> None:
        """Refuse a table that has no column for the id or the text."""
        for what, names in (("id", self.id), ("text", (*self.text, *self.paragraphs))):
            if not {*columns} & {*names}:
                raise QontextError(
                    f"has no {what} column (looked for {', '.join(names)}; it has {', '.join(columns)})",
                    place=place,
                    remedy=f"Name it with --{what}-field.",
                )

    def read(self, record: Mapping[str, Any], place: str, *, clean: bool = False) -> Record | Problem:
        """Validate the record and extract its fields. An integer is accepted as an id; no other types are
        converted. `clean` means that all its characters are known to be encodable.
        """
        id_name, id = _first(record, self.id)
        _, title = _first(record, self.title)
        doc_name, doc = _first(record, self.doc)
        _, paragraphs = _first(record, self.paragraphs)
        if id_name is None:
            return _missing("id", self.id, record, place)
        if type(id) is int:
            id = str(id)
        if not isinstance(id, str):
            return _wrong_type(id_name, "a string or an integer", id, place)
        if not id or id.isspace():
            return Problem(place, "empty id", f"its {id_name!r} is empty")
        if title is None:
            title = ""
        elif not isinstance(title, str):
            return _wrong_type("title", "a string", title, place)
        if paragraphs is not None:
            numbered = _numbered(id, paragraphs, place)
            if isinstance(numbered, Problem):
                return numbered
            doc, passages = None, numbered
        else:
            text_name, text = _first(record, self.text)
            if text_name is None:
                return _missing("text", self.text, record, place)
            if not isinstance(text, str):
                return _wrong_type(text_name, "a string", text, place)
            passages = ((id, text),)
        # Without another id, the document's id was used as the record's id.
        if doc_name == id_name or doc == "":
            doc = None
        elif type(doc) is int:
            doc = str(doc)
        elif doc is not None and not isinstance(doc, str):
            return _wrong_type(str(doc_name), "a string or an integer", doc, place)
        if not clean:
            problem = _unwritable((id, title, doc or "", *(text for _, text in passages)), place)
            if problem is not None:
                return problem
        return Record(id, title, passages, place, doc, self._metadata(record))

    def _metadata(self, record: Mapping[str, Any]) -> str:
        """The other fields, and those of an object `metadata`, as BEIR's sets have one."""
        if len(record) <= len(self.all) and self.all.issuperset(record):
            return "{}"
        others = {name: value for name, value in record.items() if name not in self.all}
        nested = others.pop("metadata", None)
        return as_json({**nested, **others} if isinstance(nested, dict) else others)


def documents(records: Iterable[Record | Problem]) -> Iterator[Document | Problem]:
    """Join consecutive records of one document. Problems precede the document that surrounds them."""
    group: list[Record] = []
    for record in records:
        is_next = isinstance(record, Record) and bool(group) and record.doc == group[0].doc
        if group and not is_next and not isinstance(record, Problem):
            yield _document(group)
            group = []
        if isinstance(record, Problem):
            yield record
        elif record.doc is None:
            yield _document([record._replace(doc=record.id)])
        else:
            group.append(record)
    if group:
        yield _document(group)


def whole(records: Iterable[Record | Problem]) -> Iterator[Document | Problem]:
    """Records that are documents, not passages."""
    for record in records:
        if isinstance(record, Problem):
            yield record
        else:
            text = record.passages[0][1]
            yield Document(record.id, record.title, text, record.place, metadata=record.metadata)


def _document(group: list[Record]) -> Document:
    """Join the records of one document. Its metadata are the fields that all of them share."""
    first = group[0]
    assert first.doc is not None
    passages = tuple(passage for record in group for passage in record.passages)
    metadata = common([record.metadata for record in group])
    differing: tuple[str, ...] = ()
    if any(record.metadata != metadata for record in group):
        differing = tuple(record.metadata for record in group for _ in record.passages)
    places = tuple(record.place for record in group for _ in record.passages) if len(group) > 1 else ()
    return Document(
        first.doc,
        first.title,
        "",
        first.place,
        passages,
        metadata=metadata,
        passage_metadata=differing,
        passage_places=places,
    )


def _is_plain(kind: pa.DataType) -> bool:
    """True if a column contains strings, numbers, booleans or dates, or lists of strings."""
    if pa.types.is_dictionary(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_text(kind.value_type)
    return _is_text(kind) or any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_integer,
            pa.types.is_floating,
            pa.types.is_boolean,
            pa.types.is_date,
            pa.types.is_timestamp,
        )
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str | None, Any]:
    for name in names:
        value = record.get(name)
        if value is not None:
            return name, value
    return None, None


def _numbered(id: str, paragraphs: object, place: str) -> tuple[tuple[str, str], ...] | Problem:
    """The non-empty paragraphs, with ids ``id#0``, ``id#1`` …"""
    if not isinstance(paragraphs, list) or not all(isinstance(p, str) for p in paragraphs):
        return _wrong_type("paragraphs", "a list of strings", paragraphs, place)
    texts = (text for text in paragraphs if text and not text.isspace())
    return tuple((f"{id}#{n}", text) for n, text in enumerate(texts))


def _unwritable(texts: Iterable[str], place: str) -> Problem | None:
    """Check for NUL characters and lone surrogates, which JSON can escape but UTF-8 cannot encode."""
    for text in texts:
        if "\0" in text:
            return Problem(place, "NUL bytes", "its text contains NUL characters")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                half = f"U+{ord(text[error.start]):04X}"
                return Problem(place, "wrong encoding", f"contains a lone surrogate ({half})")
    return None


def _missing(what: str, names: tuple[str, ...], record: Mapping[str, Any], place: str) -> Problem:
    present = ", ".join(list(map(str, record))[:12]) or "nothing"
    return Problem(place, "missing field", f"has no {what} (looked for {', '.join(names)}; it has {present})")


def _wrong_type(field: str, expected: str, value: object, place: str) -> Problem:
    kind = {list: "a list", dict: "an object", bool: "true or false", int: "a number", float: "a number"}
    inside = " of other types" if isinstance(value, list) and "list" in expected else ""
    actual = kind.get(type(value), "a string" if isinstance(value, str) else type(value).__name__)
    return Problem(place, "wrong type", f"{field!r} must be {expected}, not {actual}{inside}")
