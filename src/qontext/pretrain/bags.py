"""Bags of words: the distinct ordinary tokens of texts, which a vector alone predicts.

Shapes: N texts, K tokens of their bags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qontext.contexts.base import Ints
from qontext.pretrain.masking import Vocabulary
from qontext.pretrain.texts import FlatTexts
from qontext.training.batch import Tensors


@dataclass(frozen=True)
class Bag(Tensors):
    """What the rows of a micro-batch predict: `rows` [K] a row, `labels` [K] a token of its bag.

    `weights` [K] sum to 1 over the whole batch: every bag weighs the same, and so does every token of a bag.
    """

    rows: Tensor
    labels: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Bags:
    """The bags of a step's rows, one after the other, `counts` [N] tokens each. `total` is the number of bags, or 1."""

    counts: Ints
    labels: Ints
    weights: NDArray[np.float32]
    total: float

    @staticmethod
    def of(texts: Sequence[FlatTexts], rows: int, words: Vocabulary) -> Bags:
        """The bags of row 0, 1, … are those of the first, second, … text in each of `texts`; later rows have none."""
        parts = [_distinct(part, words) for part in texts]
        row, labels, shares = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(row, kind="stable")
        total = float(max(1, sum(len(np.unique(row)) for row, _, _ in parts)))
        weights = (shares[order] / total).astype(np.float32)
        return Bags(np.bincount(row, minlength=rows), labels[order], weights, total)

    def cut(self, rows: Ints) -> Bag:
        """The bags of some rows."""
        lengths = self.counts[rows]
        begins = (np.cumsum(self.counts) - self.counts)[rows]
        place = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        columns = np.repeat(np.arange(len(rows)), lengths), self.labels[place], self.weights[place]
        return Bag(*(torch.from_numpy(column) for column in columns))


def _distinct(texts: FlatTexts, words: Vocabulary) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """[K] rows, distinct ordinary tokens and 1 / their number in the text."""
    row = np.repeat(np.arange(len(texts.lengths)), texts.lengths)
    ordinary = ~np.isin(texts.ids, words.special)
    size = 1 + int(texts.ids.max(initial=0))
    row, labels = np.divmod(np.unique(row[ordinary] * size + texts.ids[ordinary]), size)
    return row, labels, 1 / np.bincount(row)[row] if len(row) else np.zeros(0)
