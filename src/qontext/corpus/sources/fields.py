"""Records (of JSON Lines, Parquet, headed TSV, data sets) → documents.

A record is a passage of the document that its `doc` field names, or a document with paragraphs, or, with
neither, a document that is its own one passage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from qontext.corpus.sources.base import FieldNames, Problem
from qontext.errors import QontextError
from qontext.records import Document


class Record(NamedTuple):
    """A record that is fine; `doc` is None where it is a document of its own."""

    id: str
    title: str
    passages: tuple[tuple[str, str], ...]
    place: str
    doc: str | None = None


class Fields:
    """Reads records by the names that their fields may have."""

    def __init__(self, names: FieldNames) -> None:
        self.id, self.title, self.text, self.paragraphs, self.doc = (
            tuple(alternatives.split("|"))
            for alternatives in (names.id, names.title, names.text, names.paragraphs, names.doc)
        )

    @property
    def all(self) -> set[str]:
        return {*self.id, *self.title, *self.text, *self.paragraphs, *self.doc}

    def check(self, columns: Collection[str], place: str | Path) -> None:
        """Refuse a table that has no column for the id or the text."""
        for what, names in (("id", self.id), ("text", (*self.text, *self.paragraphs))):
            if not {*columns} & {*names}:
                raise QontextError(
                    f"has no {what} column (looked for {', '.join(names)}; it has {', '.join(columns)})",
                    place=place,
                    remedy=f"Name the right one with --{what}-field.",
                )

    def read(self, record: Mapping[str, Any], place: str, *, clean: bool = False) -> Record | Problem:
        """Check the record and take its fields out. An integer is fine for an id, nothing else is bent.

        `clean` says that all of its characters are known to be fit for a file.
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
            found = _numbered(id, paragraphs, place)
            if isinstance(found, Problem):
                return found
            doc, passages = None, found
        else:
            text_name, text = _first(record, self.text)
            if text_name is None:
                return _missing("text", self.text, record, place)
            if not isinstance(text, str):
                return _wrong_type(text_name, "a string", text, place)
            passages = ((id, text),)
        # Without another id the document's id has been taken for the record's own.
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
        return Record(id, title, passages, place, doc)


def documents(records: Iterable[Record | Problem]) -> Iterator[Document | Problem]:
    """Join consecutive records of one document. Problems come before the document around them."""
    first: Record | None = None
    passages: list[tuple[str, str]] = []
    for record in records:
        if isinstance(record, Problem):
            yield record
        elif record.doc is None:
            if first is not None:
                yield _document(first, tuple(passages))
                first = None
            yield Document(record.id, record.title, "", record.place, record.passages)
        elif first is not None and record.doc == first.doc:
            passages += record.passages
        else:
            if first is not None:
                yield _document(first, tuple(passages))
            first, passages = record, list(record.passages)
    if first is not None:
        yield _document(first, tuple(passages))


def whole(records: Iterable[Record | Problem]) -> Iterator[Document | Problem]:
    """Records that are documents and no passages."""
    for record in records:
        if isinstance(record, Problem):
            yield record
        else:
            yield Document(record.id, record.title, record.passages[0][1], record.place)


def _document(first: Record, passages: tuple[tuple[str, str], ...]) -> Document:
    assert first.doc is not None
    return Document(first.doc, first.title, "", first.place, passages)


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str | None, Any]:
    for name in names:
        value = record.get(name)
        if value is not None:
            return name, value
    return None, None


def _numbered(id: str, paragraphs: object, place: str) -> tuple[tuple[str, str], ...] | Problem:
    """The paragraphs that are not empty, with ids ``id#0``, ``id#1`` …"""
    if not isinstance(paragraphs, list) or not all(isinstance(p, str) for p in paragraphs):
        return _wrong_type("paragraphs", "a list of strings", paragraphs, place)
    texts = (text for text in paragraphs if text and not text.isspace())
    return tuple((f"{id}#{n}", text) for n, text in enumerate(texts))


def _unwritable(texts: Iterable[str], place: str) -> Problem | None:
    """NUL characters, and halves of characters, which JSON can spell but no file can hold."""
    for text in texts:
        if "\0" in text:
            return Problem(place, "NUL bytes", "its text holds NUL characters")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                half = f"U+{ord(text[error.start]):04X}"
                return Problem(place, "wrong encoding", f"holds half a character (the lone surrogate {half})")
    return None


def _missing(what: str, names: tuple[str, ...], record: Mapping[str, Any], place: str) -> Problem:
    found = ", ".join(list(map(str, record))[:12]) or "nothing"
    return Problem(place, "missing field", f"has no {what} (looked for {', '.join(names)}; it has {found})")


def _wrong_type(field: str, expected: str, value: object, place: str) -> Problem:
    kind = {list: "a list", dict: "an object", bool: "true or false", int: "a number", float: "a number"}
    inside = " of other things" if isinstance(value, list) and "list" in expected else ""
    found = kind.get(type(value), "a string" if isinstance(value, str) else type(value).__name__)
    return Problem(place, "wrong type", f"{field!r} should be {expected}, but is {found}{inside}")
