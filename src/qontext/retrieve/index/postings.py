"""Postings: where each term occurs, with its score there; the memory-mapped arrays of a BM25 index, and of learned weights.

Columns of a sparse matrix: term t occurs in the passages ``rows[starts[t] : starts[t + 1]]``, with the scores
at the same positions in `data`.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qontext.frame.files import damaged, read_array, read_json
from qontext.models.packed import Packed

Array = np.ndarray[Any, Any]
DATA, ROWS, STARTS = "data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy"
VOCABULARY = "vocab.index.json"
"""The files of bm25s."""
_BLOCK = 1 << 22
"""Terms of the texts that are sorted together, and postings that are scored together."""
_TERM = np.uint64(32)
"""A key has a term in its upper bits and a text in its lower ones."""


@dataclass(frozen=True)
class Postings:
    data: Array
    rows: Array
    starts: Array
    passages: int
    vocabulary: dict[str, int] = field(default_factory=dict)
    """Term → its column; empty if terms are numbers from elsewhere."""

    def __len__(self) -> int:
        return self.passages

    @classmethod
    def load(cls, folder: Path, passages: int) -> Postings:
        """The postings in the files of bm25s, checked for consistency."""
        vocabulary: dict[str, int] = read_json(folder / VOCABULARY, dict[str, int])
        data = read_array(folder / DATA, "f")
        rows = read_array(folder / ROWS, "iu")
        starts = read_array(folder / STARTS, "iu")
        postings = cls(data, rows, starts, passages, vocabulary)
        if fault := postings.fault():
            raise damaged(folder, fault)
        return postings

    def fault(self) -> str | None:
        """The inconsistency of the arrays, if any."""
        starts, rows = self.starts, self.rows
        if self.data.shape[:1] != rows.shape:
            return "its arrays have inconsistent shapes"
        if not len(starts) or starts[0] or starts[-1] != len(self.data) or (np.diff(starts) < 0).any():
            return "the offsets of its terms do not ascend"
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.passages:
            return "its passage numbers are out of range"
        # bm25s expects an empty term, which no text contains.
        if not all(0 <= n < len(starts) - 1 for term, n in self.vocabulary.items() if term):
            return "its term numbers are out of range"
        return None

    def scores(self, terms: list[int], weights: Array | None = None) -> Array:
        """[P] the score of each passage for the weighted terms of a query."""
        total = np.zeros(self.passages, np.float32)
        for term in terms:
            places = slice(int(self.starts[term]), int(self.starts[term + 1]))
            total[self.rows[places]] += self.data[places]  # a term names a passage once
        return total if weights is None else total * weights

    def scores_of(self, passages: Array, terms: list[int], weights: Array) -> Array:
        """[N] Σ weight in the query · weight in these passages alone, whose numbers ascend within each term."""
        total, wanted = np.zeros(len(passages), np.float32), passages.astype(self.rows.dtype)
        for term, weight in zip(terms, weights.tolist()):
            first, end = int(self.starts[term]), int(self.starts[term + 1])
            if first == end:
                continue
            at = first + np.searchsorted(self.rows[first:end], wanted)
            has = self.rows[np.minimum(at, end - 1)] == wanted
            total[has] += weight * self.data[at[has]].astype(np.float32)
        return total


def postings_of(packed: Packed, terms: int) -> Postings:
    """Rows of weights → where each term occurs, passages in order."""
    assert packed.terms is not None
    order = np.argsort(packed.terms, kind="stable")
    row = np.repeat(np.arange(len(packed)), packed.lengths)
    small = np.uint16 if len(packed) <= 1 << 16 else np.int32
    starts = np.concatenate([[0], np.cumsum(np.bincount(packed.terms, minlength=terms))])
    return Postings(packed.values[order], row[order].astype(small), starts, len(packed))


class TermCounts(NamedTuple):
    """Postings of consecutive terms, ordered by term and text: their terms, texts and frequencies."""

    terms: Array
    rows: Array
    frequencies: Array


class Inverter:
    """Inverts texts, which are lists of term numbers. Blocks of them are sorted; if there are several, they are kept in
    files and merged, so that memory does not grow with the postings.

    >>> inverter = Inverter()
    >>> for text in ([0, 1, 0], [1]):
    ...     inverter.add(text)
    >>> [counts] = inverter.counts()
    >>> counts.terms.tolist(), counts.rows.tolist(), counts.frequencies.tolist()
    ([0, 1, 1], [0, 0, 1], [2, 1, 1])
    """

    def __init__(self) -> None:
        self._terms, self._lengths = array("i"), array("i")
        self._first = 0
        self._texts_with = np.zeros(0, np.int64)
        self._blocks: list[tuple[Array | Path, Array | Path]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="qontext-postings-")

    def add(self, text: Sequence[int]) -> None:
        self._terms.extend(text)
        self._lengths.append(len(text))
        if len(self._terms) >= _BLOCK:
            self._sort()
            self._spill()

    @property
    def lengths(self) -> Array:
        """[P] the number of terms of each text."""
        return np.frombuffer(self._lengths, np.int32)

    def texts_with(self) -> Array:
        """[V] the number of texts with each term."""
        self._sort()
        return self._texts_with

    def counts(self) -> Iterator[TermCounts]:
        """All postings, in blocks of whole terms."""
        ends = np.cumsum(self.texts_with())
        first = 0
        while first < len(ends):
            before = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + _BLOCK, "right")))
            yield self._merged(first, last)
            first = last

    def _merged(self, first: int, last: int) -> TermCounts:
        """The postings of the terms in [first, last)."""
        keys, counts = [], []
        bounds = np.array([first, last], np.uint64) << _TERM
        for block, frequencies in map(_opened, self._blocks):
            start, end = np.searchsorted(block, bounds)
            keys.append(block[start:end])
            counts.append(frequencies[start:end])
        key, count = np.concatenate(keys), np.concatenate(counts)
        if len(self._blocks) > 1:
            order = np.argsort(key, kind="stable")
            key, count = key[order], count[order]
        return TermCounts((key >> _TERM).astype(np.int32), key.astype(np.uint32).astype(np.int32), count)

    def _sort(self) -> None:
        """Turn the texts that were added last into a block."""
        lengths = self.lengths[self._first :]
        if not len(lengths):
            return
        rows = np.arange(self._first, self._first + len(lengths), dtype=np.uint64)
        terms = np.frombuffer(self._terms, np.int32).astype(np.uint64)
        keys, counts = np.unique(np.repeat(rows, lengths) | (terms << _TERM), return_counts=True)
        texts_with = np.bincount((keys >> _TERM).astype(np.int64), minlength=len(self._texts_with))
        texts_with[: len(self._texts_with)] += self._texts_with
        self._texts_with = texts_with
        self._blocks.append((keys, counts.astype(np.int32)))
        self._terms, self._first = array("i"), len(self._lengths)

    def _spill(self) -> None:
        """Move the last block to files."""
        number = len(self._blocks) - 1
        files = tuple(Path(self._folder.name, f"{number:05d}.{name}") for name in ("keys", "counts"))
        for values, file in zip(self._blocks.pop(), files):
            assert isinstance(values, np.ndarray)
            values.tofile(file)
        self._blocks.append((files[0], files[1]))


def _opened(block: tuple[Array | Path, Array | Path]) -> tuple[Array, Array]:
    """The keys and counts of a block. Its files are mapped for as long as these are used, so that the pages of all
    blocks are not in memory at once."""
    keys, counts = block
    if isinstance(keys, Path):
        keys = np.memmap(keys, np.uint64, "r")
    if isinstance(counts, Path):
        counts = np.memmap(counts, np.int32, "r")
    return keys, counts
