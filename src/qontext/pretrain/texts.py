"""Texts on their way to the model: tokens one after the other, then masked, then padded to a rectangle.

Shapes: N texts, T tokens after padding, K positions to predict.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qontext.contexts.base import Ints
from qontext.engine.randomness import U64, hashed
from qontext.engine.rectangles import padded_width
from qontext.pretrain.masking import Vocabulary, choose_words, corrupt


@dataclass(frozen=True)
class Text:
    """Padded texts and what is to be predicted in them.

    `positions` [K] index the flattened [N·T]; `labels` [K] are the ids to predict there; `weights` [K] sum to 1 over
    the whole batch, so that a loss is Σ weight · cross entropy, however the batch is cut.
    """

    ids: Tensor
    mask: Tensor
    positions: Tensor
    labels: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> Text:
        return Text(*(getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)))


@dataclass(frozen=True)
class FlatTexts:
    """Texts one after the other, before masking: `ids`, `word_starts` [tokens]; `lengths`, `keys` [N]."""

    ids: Ints
    word_starts: NDArray[np.bool_]
    lengths: Ints
    keys: U64
    average: str

    def masked(self, stream: str, rate: float, seed: int, words: Vocabulary) -> Prepared:
        """Predict the masked tokens, each at its place."""
        keys = hashed(seed, stream, self.keys)
        chosen = choose_words(self.word_starts, self.lengths, rate, keys, seed)
        return self._prepared(corrupt(self.ids, chosen, self.lengths, keys, seed, words), chosen, self.ids)

    def whole(self, *, next_token: bool, words: Vocabulary) -> Prepared:
        """Mask nothing. Predict every token at its place, or at the place before it (the closing [SEP] too)."""
        every = np.ones(len(self.ids), bool)
        prepared = self._prepared(self.ids, every, self.ids)
        return replace(prepared, end_label=words.sep) if next_token else prepared

    def _prepared(self, ids: Ints, chosen: NDArray[np.bool_], labels: Ints) -> Prepared:
        row = np.repeat(np.arange(len(self.lengths)), self.lengths)
        per_row = np.bincount(row[chosen], minlength=len(self.lengths))
        return Prepared(self.ids, ids, chosen, labels, self.lengths, per_row, self.average)


@dataclass(frozen=True)
class Prepared:
    """Texts one after the other, masked, with what is to be predicted (`chosen` tokens, their `labels`).

    With an `end_label`, every prediction moves one place forward, and that label follows the last token.
    """

    original: Ints
    ids: Ints
    chosen: NDArray[np.bool_]
    labels: Ints
    lengths: Ints
    per_row: Ints
    average: str
    end_label: int | None = None

    @property
    def total(self) -> float:
        """What all predictions of these texts weigh together, before normalisation."""
        if self.average == "spans":
            return float(len(self.lengths))
        return float(max(1, self.per_row.sum()) + (len(self.lengths) if self.end_label is not None else 0))

    def widths(self) -> Ints:
        """[N] each text's tokens with [CLS] and [SEP]."""
        return self.lengths + 2

    def hashes(self) -> Ints:
        """[N] a 63-bit hash of each text before masking."""
        row = np.repeat(np.arange(len(self.lengths)), self.lengths)
        within = np.arange(len(row)) - (np.cumsum(self.lengths) - self.lengths)[row]
        mixed = hashed(0, "text", self.original, within) >> np.uint64(1)
        total = np.zeros(len(self.lengths), np.uint64)
        np.add.at(total, row, mixed)
        return (total >> np.uint64(1)).astype(np.int64)

    def pad(self, rows: Ints, words: Vocabulary, widest: int) -> Text:
        """The rows as a padded rectangle: [CLS] text [SEP] [PAD] …, at most `widest` wide, as positions may end there."""
        lengths = self.lengths[rows]
        width = min(int(padded_width(self.widths()[rows]).max()), widest)
        begins = (np.cumsum(self.lengths) - self.lengths)[rows]
        place = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        row = np.repeat(np.arange(len(rows)), lengths)
        column = place - begins[row] + 1
        ids = np.full((len(rows), width), words.pad, np.int64)
        ids[:, 0] = words.cls
        ids[row, column] = self.ids[place]
        ids[np.arange(len(rows)), lengths + 1] = words.sep
        mask = np.arange(width) < (lengths + 2)[:, None]

        chosen = self.chosen[place]
        at_row, at_column, labels = row[chosen], column[chosen], self.labels[place[chosen]]
        per_row = self.per_row[rows]
        if self.end_label is not None:
            at_row = np.concatenate([at_row, np.arange(len(rows))])
            at_column = np.concatenate([at_column, lengths + 1]) - 1
            labels = np.concatenate([labels, np.full(len(rows), self.end_label)])
            per_row = per_row + 1
        weights = 1.0 / per_row[at_row] if self.average == "spans" else np.ones(len(at_row))
        return Text(
            torch.from_numpy(ids),
            torch.from_numpy(mask),
            torch.from_numpy(at_row * width + at_column),
            torch.from_numpy(labels),
            torch.from_numpy((weights / self.total).astype(np.float32)),
        )
