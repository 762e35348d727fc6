"""Searchable texts, by BM25 or by a retriever, numbered from 0 in order. Only BM25's index, or vectors in
memory-mapped files, grow with the collection: neither contains the texts.

Shapes: P texts in the collection, N search inputs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.damage import read_array
from qontext.queries.words import Array, batches
from qontext.retrieve.bm25 import Bm25

VECTORS = "vectors-"
"""File names of vectors, which are removed at the end of a stage."""


class Searcher(Protocol):
    """A collection of texts that can be searched."""

    def top(self, queries: Any, k: int) -> Array:
        """[N, k] numbers of the best texts, best first; -1 where there are no more."""
        ...


class Lexical:
    """BM25 over texts."""

    between: str | None = " "

    def __init__(self, texts: Iterable[str], count: int) -> None:
        self.index = Bm25.build(texts, [f"{n:012d}" for n in range(count)])

    def top(self, queries: Sequence[str], k: int) -> Array:
        numbers, scores = self.index.top(queries, k)
        return np.where(scores > 0, numbers, -1)


@dataclass(frozen=True)
class Rows:
    """Vectors in order, as exact search reads them; parts may be mapped."""

    parts: list[Array]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def dimension(self) -> int:
        return int(self.parts[0].shape[1])

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """(numbers, vectors) of each part."""
        starts = np.cumsum([0, *map(len, self.parts)]).tolist()
        yield from ((np.arange(start, start + len(part)), part) for start, part in zip(starts, self.parts))

    def take(self, numbers: Array) -> Array:
        """[N, D] the vectors of these numbers."""
        rows = np.empty((len(numbers), self.dimension), np.float32)
        for numbers_held, part in self.blocks():
            here = (numbers >= numbers_held[0]) & (numbers <= numbers_held[-1])
            rows[here] = part[numbers[here] - numbers_held[0]]
        return rows


class Dense:
    """Inner products of a retriever's vectors; search inputs are texts or vectors."""

    def __init__(self, retriever: Any, rows: Rows, kind: str) -> None:
        from qontext.retrieve.index.exact import ExactIndex

        self.retriever, self.rows, self.kind = retriever, rows, kind
        self.between: str | None = retriever.titles.between
        vectors: Any = rows  # it has all that exact search asks for
        self.index = ExactIndex(vectors, device=str(retriever.device))

    def top(self, queries: Sequence[str] | Array, k: int) -> Array:
        vectors = queries if isinstance(queries, np.ndarray) else self.retriever.encode(queries, self.kind)
        return self.index.search(vectors, k)[0]


def encode_into(
    work: Workdir, name: str, retriever: Any, texts: Iterable[str], kind: str, total: int
) -> Rows:
    """Vectors of the texts, one file per block as in `encode`; a killed run resumes after the last complete one."""
    from qontext.retrieve.encode import BLOCK, ahead

    parts: list[str] = []
    retriever = retriever.of(kind)

    def missing() -> Iterator[tuple[str, Any]]:
        for number, block in enumerate(batches(texts, BLOCK)):
            parts.append(f"{VECTORS}{name}-{number:05d}.npy")
            if not work.has(parts[number]):
                yield parts[number], retriever.tokenize(block, kind)

    with log.progress(f"encode {name}", total, "texts") as advance:
        for part, tokens in ahead(missing()):
            with work.write(part) as path, path.open("wb") as file:
                np.save(file, retriever.encode_tokens(tokens, kind, advance=advance), allow_pickle=False)
    return Rows([read_array(work.path / part, "f", shape=(None, retriever.dimension)) for part in parts])


def remove_vectors(work: Workdir) -> None:
    """Remove the files of vectors."""
    for name in work.names():
        if name.startswith(VECTORS):
            work.remove(name)
