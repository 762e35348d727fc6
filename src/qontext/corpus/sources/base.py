"""The base of all sources: a stream of documents and, in order, problems for unusable records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from qontext.frame.errors import QontextError

if TYPE_CHECKING:
    from qontext.data.records import Document

ProblemKind = Literal[
    "broken JSON", "missing field", "wrong type", "wrong encoding", "NUL bytes", "wrong columns", "damaged file",
    "too long", "damaged document", "encrypted", "no text layer", "generated code", "too large", "no text",
    "duplicate id", "empty text",
]  # fmt: skip
UNREADABLE: tuple[ProblemKind, ...] = (
    "damaged document", "encrypted", "no text layer", "generated code", "too large", "no text",
)  # fmt: skip
"""Common in folders of real documents: such files are skipped with a warning and never stop a run."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An unusable record: its place (``docs.jsonl:17``), the kind of problem, and a message.

    A damaged file is one problem, even if several records are lost. The last two kinds are detected during
    splitting, across all records.
    """

    place: str
    kind: ProblemKind
    message: str


@dataclass(frozen=True)
class FieldNames:
    """The names of a record's fields: alternatives separated by ``|``; the first one present is used."""

    id: str = "_id|id|docid|doc_id"
    title: str = "title"
    text: str = "text|contents|body"
    paragraphs: str = "paragraphs"
    doc: str = "doc_id"

    @classmethod
    def parse(cls, text: str) -> FieldNames:
        """``id=docno,text=body`` → the names of these fields, and the default for the others."""
        names = dict(pair.split("=", 1) for pair in text.split(",") if "=" in pair)
        if text and (names.keys() - cls.__dataclass_fields__ or len(names) < text.count(",") + 1):
            raise QontextError(
                f"--fields {text!r} is not FIELD=NAME, ...",
                remedy="Fields: id, title, text, paragraphs, doc.",
            )
        return cls(**names)


class Source(ABC):
    """A stream of documents: memory does not grow with their number.

    `has_passages` is True if its records are, or may be used as, passages with their own ids; `has_ids` if they are
    documents with ids that judgments may name, which can be kept as long passages.
    `bytes_read` of `bytes_total` is the progress of `documents()`; for compressed files, compressed bytes.
    """

    unread: Mapping[str, int]
    """The number of files that are not read, by extension."""
    as_text: Mapping[str, int]
    """The number of files that are read because their content is text, by extension."""

    def __init__(
        self, name: str, *, has_passages: bool, has_ids: bool = False, bytes_total: int | None = None
    ) -> None:
        self.name, self.has_passages, self.bytes_total = name, has_passages, bytes_total
        self.has_ids = has_passages or has_ids
        self.bytes_read = 0
        self.unread, self.as_text = {}, {}

    @classmethod
    def open(cls, uri: str, rest: str, fields: FieldNames) -> Self:
        """The source of a URI; `rest` follows its scheme."""
        raise NotImplementedError

    @classmethod
    def fingerprint(cls, rest: str) -> str | None:
        """A hash of the URI's content, to detect changes; None if the name identifies it."""
        return None

    @classmethod
    def stamp(cls, rest: str) -> str:
        """A stamp that changes with the URI's content, which is not read for it; empty if there is none."""
        return ""

    @abstractmethod
    def documents(self) -> Iterator[Document | Problem]:
        """Every record of the source, in order, as (part of) a document or as a problem."""

    def advance(self, amount: int) -> None:
        self.bytes_read += amount
