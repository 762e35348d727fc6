"""The usable documents of a source in blocks of consecutive records, and on their way from one reader to several processes.

A source is a stream, so one process reads it: the first one that needs it, while the others wait. It writes a file of blocks
for each part, so whoever splits a part knows nothing of other records.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from qontext.corpus.sources.base import UNREADABLE, Problem, Source
from qontext.data.ids import SeenIds
from qontext.data.records import Document
from qontext.frame import locks, log
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json

RECORDS_PER_BLOCK, BLOCKS_PER_PART = 128, 32
MOST_NAMED = 20
"""Maximum number of skipped files to name; beyond that, only their number is shown (all names with -v)."""
SPOOL = ".documents"
"""The folder; hidden, since it is no part of the result."""
_SIZES = f"{SPOOL}/sizes.json"


@dataclass
class DocumentBlock:
    """The usable documents among consecutive records, and the counts of the others."""

    documents: list[Document] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


_BLOCK = TypeAdapter(DocumentBlock)


def usable_blocks(
    source: Source, *, keep: bool, stops: bool, advance: Callable[[float], None]
) -> Iterator[DocumentBlock]:
    """The source's records in blocks of fixed size, without unusable ones: these are counted, or the first one stops. With
    `keep`, the passages are kept, and their ids have to be unique."""
    reader = _Reader(keep, stops)
    items, read = source.documents(), 0
    while batch := list(itertools.islice(items, RECORDS_PER_BLOCK)):
        advance(source.bytes_read - read)
        read = source.bytes_read
        yield reader.block(batch)


class _Reader:
    def __init__(self, keep: bool, stops: bool) -> None:
        self.keep, self.stops, self.seen_ids, self.left_out = keep, stops, SeenIds(), 0

    def block(self, batch: list[Document | Problem]) -> DocumentBlock:
        block, documents = DocumentBlock(), []
        for item in batch:
            problem = item if isinstance(item, Problem) else problem_of(item, keep=self.keep)
            if problem is not None:
                self._reject(problem, block)
            elif isinstance(item, Document):
                documents.append(item)
        ids = [self._ids(document) for document in documents]
        block.counts["records"] = len(batch) - len(documents) + sum(map(len, ids))
        repeated = iter(self.seen_ids.repeated(list(itertools.chain.from_iterable(ids))))
        for document, names in zip(documents, ids):
            is_new = [not next(repeated) for _ in names]
            for name in itertools.compress(names, [not new for new in is_new]):
                message = f"the id {name!r} occurred before"
                self._reject(Problem(document.place, "duplicate id", message), block)
            if all(is_new):
                block.documents.append(document)
            elif any(is_new):
                block.documents.append(_selected(document, is_new))
        if self.keep:
            texts = (text for d in block.documents for _, text in d.passages or ((d.id, d.content),))
            block.counts["kept_empty"] = sum(not text.strip() for text in texts)
        return block

    def _ids(self, document: Document) -> list[str]:
        """The ids that must be unique: the passages' ids if they are kept, else the document's id."""
        return [name for name, _ in document.passages] if self.keep and document.passages else [document.id]

    def _reject(self, problem: Problem, block: DocumentBlock) -> None:
        is_unreadable = problem.kind in UNREADABLE
        if self.stops and not is_unreadable:
            remedy = "Fix it, or skip such records with --on-error skip."
            raise QontextError(problem.message, place=problem.place, remedy=remedy)
        self.left_out += is_unreadable
        tell = log.warn if is_unreadable and self.left_out <= MOST_NAMED else log.detail
        tell(f"left out: {problem.place}: {problem.message}")
        block.counts[f"skipped: {problem.kind}"] += 1


def _selected(document: Document, is_selected: list[bool]) -> Document:
    """The document with some of its passages."""
    return replace(
        document,
        passages=tuple(itertools.compress(document.passages, is_selected)),
        passage_metadata=tuple(itertools.compress(document.passage_metadata, is_selected)),
        passage_places=tuple(itertools.compress(document.passage_places, is_selected)),
    )


def problem_of(document: Document, *, keep: bool) -> Problem | None:
    """The reason why a document cannot be used; None if it can."""
    # Kept passages may be empty: judgments refer to their ids.
    if keep or document.content.strip():
        return None
    if document.file:
        return Problem(document.place, "no text", "contains no text")
    return Problem(document.place, "empty text", f"the text of {document.id!r} is empty")


def spool(work: Workdir, blocks: Iterable[DocumentBlock]) -> list[int]:
    """The number of documents of each part. Blocks are read if no other process has written them yet."""
    with locks.lock(work.path, SPOOL, wait=True):
        if not work.has(_SIZES):
            sizes: list[int] = []
            stream = iter(blocks)
            while part := list(itertools.islice(stream, BLOCKS_PER_PART)):
                with work.write(_name(len(sizes))) as path, path.open("wb") as file:
                    file.writelines(_BLOCK.dump_json(block) + b"\n" for block in part)
                sizes.append(sum(len(block.documents) for block in part))
            work.write_json(_SIZES, sizes)
    numbers: list[int] = read_json(work.path / _SIZES, list[int])
    return numbers


def spooled(work: Workdir, part: int) -> Iterator[DocumentBlock]:
    """The blocks of a part."""
    with (work.path / _name(part)).open("rb") as file:
        yield from map(_BLOCK.validate_json, file)


def _name(part: int) -> str:
    return f"{SPOOL}/{part:05d}.jsonl"
