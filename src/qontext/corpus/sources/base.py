"""What every source is: a stream of documents, with the records that could not be used in their places."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qontext.records import Document

Kind = Literal[
    "broken JSON",
    "not an object",
    "missing field",
    "wrong type",
    "empty id",
    "wrong encoding",
    "NUL bytes",
    "wrong columns",
    "too long",
    "damaged file",
    "duplicate id",
    "empty text",
]


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that cannot be used: where it stands (``docs.jsonl:17``), of which kind, and what is wrong.

    A damaged file is one problem, though more than one record may be lost with it. The last two kinds are
    what splitting finds over all records.
    """

    place: str
    kind: Kind
    message: str


@dataclass(frozen=True)
class FieldNames:
    """What the fields of a record are called: alternatives split by ``|``; the first that is there counts."""

    id: str = "_id|id|docid|doc_id"
    title: str = "title"
    text: str = "text|contents|body"
    paragraphs: str = "paragraphs"
    doc: str = "doc_id"


class Source(ABC):
    """Documents from somewhere, read one after the other: memory does not grow with their number.

    `has_passages` says that its records are, or may be taken for, passages with ids of their own.
    `bytes_read` of `bytes_total` are behind `documents()`; for compressed files, compressed bytes.
    """

    def __init__(self, name: str, *, has_passages: bool, bytes_total: int | None = None) -> None:
        self.name, self.has_passages, self.bytes_total = name, has_passages, bytes_total
        self.bytes_read = 0

    @abstractmethod
    def documents(self) -> Iterator[Document | Problem]:
        """Every record of the source, in its order, as (part of) a document or as a problem."""

    def advance(self, amount: int) -> None:
        self.bytes_read += amount
