"""Documents on their way from one reader to several processes that split them: a file of blocks for each part.

A source is a stream, so one process reads it: the first one that needs it, while the others wait. Each block has the
usable documents among consecutive records, so that whoever splits a part knows nothing of other records.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from qontext.frame import locks
from qontext.frame.artifacts import Workdir
from qontext.frame.files import read_json

if TYPE_CHECKING:
    from qontext.data.records import Document

SPOOL = ".documents"
"""The folder; hidden, since it is no part of the result."""
_SIZES = f"{SPOOL}/sizes.json"


@dataclass
class SpoolBatch:
    """The usable documents among consecutive records, and the counts of the others."""

    documents: list[Document] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def spool(work: Workdir, blocks: Iterable[SpoolBatch], per_part: int) -> list[int]:
    """The number of documents of each part. Blocks are read if no other process has written them yet."""
    with locks.lock(work.path, SPOOL, wait=True):
        if not work.has(_SIZES):
            sizes, stream = [], iter(blocks)
            for number in itertools.count():
                if not (part := list(itertools.islice(stream, per_part))):
                    break
                with work.write(_name(number)) as path, path.open("w", encoding="ascii") as file:
                    for block in part:
                        documents = [asdict(document) for document in block.documents]
                        file.write(json.dumps({"documents": documents, "counts": block.counts}) + "\n")
                sizes.append(sum(len(block.documents) for block in part))
            work.write_json(_SIZES, sizes)
    numbers: list[int] = read_json(work.path / _SIZES, list[int])
    return numbers


def spooled(work: Workdir, part: int) -> Iterator[SpoolBatch]:
    """The blocks of a part."""
    with (work.path / _name(part)).open(encoding="ascii") as file:
        for line in file:
            block = json.loads(line)
            yield SpoolBatch([_document(values) for values in block["documents"]], Counter(block["counts"]))


def _document(values: dict[str, Any]) -> Document:
    from qontext.data.records import Block, Document

    blocks = (Block(**{**block, "headings": tuple(block["headings"])}) for block in values["blocks"])
    return Document(
        **{
            **values,
            "passages": tuple((name, text) for name, text in values["passages"]),
            "blocks": tuple(blocks),
            "passage_metadata": tuple(values["passage_metadata"]),
            "passage_places": tuple(values["passage_places"]),
        }
    )


def _name(part: int) -> str:
    return f"{SPOOL}/{part:05d}.jsonl"
