"""Postings: where each term occurs, with its score there; the memory-mapped arrays of a BM25 index, and of learned weights.

Columns of a sparse matrix: term t occurs in the passages ``rows[starts[t] : starts[t + 1]]``, with the scores
at the same positions in `data`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from qontext.frame.damage import damaged, read_array, read_json

Array = np.ndarray[Any, Any]


class _Parameters(TypedDict):
    """The fields read from the index's parameters."""

    num_docs: NonNegativeInt


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
    def of(cls, index: Any) -> Postings:
        """The postings of a bm25s index."""
        data, rows, starts = (index.scores[name] for name in ("data", "indices", "indptr"))
        return cls(data, rows, starts, index.scores["num_docs"], index.vocab_dict)

    @classmethod
    def load(cls, folder: Path) -> Postings:
        """The postings saved by bm25s, checked for consistency."""
        passages: int = read_json(folder / "params.index.json", _Parameters)["num_docs"]
        vocabulary: dict[str, int] = read_json(folder / "vocab.index.json", dict[str, int])
        data = read_array(folder / "data.csc.index.npy", "f")
        rows = read_array(folder / "indices.csc.index.npy", "iu")
        starts = read_array(folder / "indptr.csc.index.npy", "iu")
        postings = cls(data, rows, starts, passages, vocabulary)
        if fault := postings.fault():
            raise damaged(folder, fault)
        return postings

    def fault(self) -> str | None:
        """What is inconsistent."""
        starts, rows = self.starts, self.rows
        if self.data.shape[:1] != rows.shape:
            return "its arrays have inconsistent shapes"
        if not len(starts) or starts[0] or starts[-1] != len(self.data) or (np.diff(starts) < 0).any():
            return "the offsets of its terms do not ascend"
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.passages:
            return "its passage numbers are out of range"
        # The library adds an empty term, which no text contains.
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
