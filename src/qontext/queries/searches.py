"""Searches among all passages, or all queries of a collection, by BM25 or by a retriever: at which rank is a text?

Texts are numbered from 0 in order. Only BM25's index, or vectors in memory-mapped files, grow with the collection: neither
contains the texts.

Shapes: P texts in the collection, N search inputs, U passages with queries, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.files import read_array
from qontext.models.folder import TextKind
from qontext.queries.words import Array, batches
from qontext.retrieve.bm25 import Bm25
from qontext.retrieve.index.exact import ExactIndex
from qontext.retrieve.index.lexical import LexicalIndex
from qontext.retrieve.rankers import IndexRanker
from qontext.retrieve.stored import ArrayVectors

VECTORS = "vectors-"
"""File names of vectors, which are removed at the end of a stage."""
RANKED = 4_000_000
"""Number of ranks to examine together."""


@dataclass(frozen=True)
class TextIndex:
    """An index of texts by number. Search inputs are texts, encoded as `kind`, or their vectors."""

    ranker: IndexRanker
    kind: TextKind = "query"

    @classmethod
    def lexical(cls, texts: Iterable[str], count: int) -> TextIndex:
        """BM25 over so many texts."""
        return cls(IndexRanker(LexicalIndex(Bm25.build(texts, [f"{n:012d}" for n in range(count)]))))

    @classmethod
    def dense(cls, retriever: Any, vectors: ArrayVectors, kind: TextKind) -> TextIndex:
        """Inner products of a retriever's vectors."""
        return cls(IndexRanker(ExactIndex(vectors, device=str(retriever.device)), retriever), kind)

    @classmethod
    def build(cls, retriever: Any, work: Workdir, name: str, texts: Iterable[str], count: int) -> TextIndex:
        """BM25 without a retriever. `name` says what the texts are: passages, to search with queries, or the reverse."""
        if retriever is None:
            return cls.lexical(texts, count)
        kinds: tuple[TextKind, TextKind] = (
            ("passage", "query") if name == "passages" else ("query", "passage")
        )
        return cls.dense(retriever, encode_into(work, name, retriever, texts, kinds[0], count), kinds[1])

    def known(self, texts: list[str], numbers: Array) -> Any:
        """The search input for texts of these numbers in this collection: their vectors, if they have been encoded."""
        vectors = getattr(self.ranker.index, "vectors", None)
        return texts if vectors is None else vectors.take(numbers)

    def top(self, queries: Sequence[str] | Array, k: int) -> Array:
        """[N, k] numbers of the best texts, best first; -1 where there are no more."""
        return self.ranker.top(queries, k, kind=self.kind)[0]

    def ranks(self, queries: Any, targets: Array, depth: int) -> Array:
        """[N] the rank (from 1) of number `targets[n]` in the search for `queries[n]`; 0 beyond `depth`."""
        ranks = np.zeros(len(targets), np.int32)
        for rows in _slices(len(targets), depth):
            numbers = self.top(queries[rows], depth)
            ranks[rows] = ((numbers == targets[rows, None]) * np.arange(1, numbers.shape[1] + 1)).max(axis=1)
        return ranks

    def back_ranks(self, queries: Any, owner: Array, first: int, most: Array) -> Array:
        """[N] the rank (from 1) of each text in the search with its own passage, among all texts; 0 beyond the depth. The N
        texts are numbered from `first` on; text n belongs to passage `queries[owner[n]]` of the U passages, each searched to
        rank `most[u]`."""
        ranks = np.zeros(len(owner), np.int32)
        for rows in _slices(len(most), int(most.max(initial=1))):
            numbers = self.top(queries[rows], int(most[rows].max())) - first
            inside = (numbers >= 0) & (numbers < len(owner))
            of = np.arange(len(most))[rows, None]
            mine = inside & (owner[np.where(inside, numbers, 0)] == of)
            row, column = np.nonzero(mine & (np.arange(numbers.shape[1]) < most[rows, None]))
            ranks[numbers[row, column]] = column + 1
        return ranks


def encode_into(
    work: Workdir, name: str, retriever: Any, texts: Iterable[str], kind: TextKind, total: int
) -> ArrayVectors:
    """Vectors of the texts, one file per block as in `encode`; a killed run resumes after the last complete one."""
    from qontext.retrieve.encode import BLOCK

    parts: list[str] = []
    retriever = retriever.of(kind)
    with log.progress(f"encode {name}", total, "texts") as advance:
        for number, block in enumerate(batches(texts, BLOCK)):
            parts.append(f"{VECTORS}{name}-{number:05d}.npy")
            if not work.has(parts[number]):
                vectors = retriever.encode_tokens(retriever.tokenize(block, kind), kind, advance=advance)
                with work.write(parts[number]) as path, path.open("wb") as file:
                    np.save(file, vectors, allow_pickle=False)
    return ArrayVectors(
        [read_array(work.path / part, "f", shape=(None, retriever.dimension)) for part in parts]
    )


def remove_vectors(work: Workdir) -> None:
    """Remove the files of vectors."""
    for name in work.names():
        if name.startswith(VECTORS):
            work.remove(name)


def _slices(count: int, k: int) -> list[slice]:
    size = max(1, RANKED // k)
    return [slice(start, start + size) for start in range(0, count, size)]
