"""Searchable texts, by BM25 or by a retriever, numbered from 0 in order. Only BM25's index, or vectors in
memory-mapped files, grow with the collection: neither contains the texts.

Shapes: P texts in the collection, N search inputs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.files import read_array
from qontext.models.folder import TextKind
from qontext.queries.words import Array, batches
from qontext.retrieve.bm25 import Bm25
from qontext.retrieve.encoded.vectors import ArrayVectors
from qontext.retrieve.index.lexical import LexicalIndex
from qontext.retrieve.rankers import IndexRanker

VECTORS = "vectors-"
"""File names of vectors, which are removed at the end of a stage."""


@dataclass(frozen=True)
class TextIndex:
    """An index of texts by number. Search inputs are texts, encoded as `kind`, or their vectors."""

    ranker: IndexRanker
    kind: TextKind = "query"
    between: str | None = " "
    """Stands between the title and the text of a passage; None leaves out the title."""

    @classmethod
    def lexical(cls, texts: Iterable[str], count: int) -> TextIndex:
        """BM25 over so many texts."""
        return cls(IndexRanker(LexicalIndex(Bm25.build(texts, [f"{n:012d}" for n in range(count)]))))

    @classmethod
    def dense(cls, retriever: Any, vectors: ArrayVectors, kind: TextKind) -> TextIndex:
        """Inner products of a retriever's vectors."""
        from qontext.retrieve.index.exact import ExactIndex

        return cls(
            IndexRanker(ExactIndex(vectors, device=str(retriever.device)), retriever),
            kind,
            retriever.titles.between,
        )

    @property
    def vectors(self) -> ArrayVectors | None:
        """The vectors of the texts, if they have any."""
        return getattr(self.ranker.index, "vectors", None)

    def top(self, queries: Sequence[str] | Array, k: int) -> Array:
        """[N, k] numbers of the best texts, best first; -1 where there are no more."""
        return self.ranker.top(queries, k, kind=self.kind)[0]


def encode_into(
    work: Workdir, name: str, retriever: Any, texts: Iterable[str], kind: TextKind, total: int
) -> ArrayVectors:
    """Vectors of the texts, one file per block as in `encode`; a killed run resumes after the last complete one."""
    from qontext.retrieve.encode import BLOCK

    parts: list[str] = []
    retriever = retriever.of(kind)

    def missing() -> Iterator[tuple[str, Any]]:
        for number, block in enumerate(batches(texts, BLOCK)):
            parts.append(f"{VECTORS}{name}-{number:05d}.npy")
            if not work.has(parts[number]):
                yield parts[number], retriever.tokenize(block, kind)

    with log.progress(f"encode {name}", total, "texts") as advance:
        for part, tokens in _ahead(missing()):
            with work.write(part) as path, path.open("wb") as file:
                np.save(file, retriever.encode_tokens(tokens, kind, advance=advance), allow_pickle=False)
    return ArrayVectors(
        [read_array(work.path / part, "f", shape=(None, retriever.dimension)) for part in parts]
    )


def remove_vectors(work: Workdir) -> None:
    """Remove the files of vectors."""
    for name in work.names():
        if name.startswith(VECTORS):
            work.remove(name)


def _ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Compute each item in a thread while the previous one is used."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item
