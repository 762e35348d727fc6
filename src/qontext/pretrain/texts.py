"""Model inputs: concatenated tokens, then masked, then padded to a rectangle; and bags of words, the distinct ordinary
tokens of texts, which a vector alone predicts.

Shapes: N texts, R of them with a bag, T tokens after padding, K positions or tokens to predict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qontext.contexts import Ints
from qontext.models.batching import Grid
from qontext.pretrain.masking import Vocabulary, choose_words, corrupt
from qontext.training.batch import Tensors
from qontext.training.randomness import U64, hashed


@dataclass(frozen=True)
class Text(Tensors):
    """Padded texts and their prediction targets.

    `positions` [K] index the flattened [N·T]; `labels` [K] are the ids to predict there; `weights` [K] are equal and
    sum to 1 over the whole batch, so that Σ weight · cross entropy is the mean, regardless of micro-batches.
    `words` [N, T] numbers a text's words from 1, 0 at special tokens and padding, if all tokens are to be predicted.
    `masked` [R] are places like `positions`, where tokens are to be restored, and others are predicted, too.
    """

    ids: Tensor
    mask: Tensor
    positions: Tensor
    labels: Tensor
    weights: Tensor
    words: Tensor | None = None
    masked: Tensor | None = None


@dataclass(frozen=True)
class FlatTexts:
    """Concatenated texts before masking: `ids`, `word_starts` [tokens]; `lengths`, `keys`, `is_query` [N]."""

    ids: Ints
    word_starts: NDArray[np.bool_]
    lengths: Ints
    keys: U64
    is_query: NDArray[np.bool_] | None = None

    def masked(self, stream: str, rate: float, seed: int, words: Vocabulary) -> Prepared:
        """Predict the masked tokens, each at its position."""
        keys = hashed(seed, stream, self.keys)
        chosen = self._choose(rate, keys, seed, words)
        return self._prepared(corrupt(self.ids, chosen, self.lengths, keys, seed, words), chosen, self.ids)

    def restored(self, rate: float, seed: int, words: Vocabulary) -> Prepared:
        """Mask tokens by [MASK] alone and predict every token. Of two rates, the larger one's masks include almost all
        of the smaller one's."""
        chosen = self._choose(rate, hashed(seed, "restored", self.keys), seed, words)
        prepared = self._prepared(
            np.where(chosen, words.mask, self.ids), np.ones(len(chosen), bool), self.ids
        )
        return replace(prepared, masked=chosen)

    def _choose(self, rate: float, keys: U64, seed: int, words: Vocabulary) -> NDArray[np.bool_]:
        """The tokens to mask. What stands between title and text is no word."""
        is_word = self.ids != words.sep
        row = np.repeat(np.arange(len(self.lengths)), self.lengths)
        lengths = np.bincount(row[is_word], minlength=len(self.lengths))
        chosen = np.zeros(len(self.ids), bool)
        chosen[is_word] = choose_words(self.word_starts[is_word], lengths, rate, keys, seed)
        return chosen

    def whole(self, *, next_token: bool, words: Vocabulary, decoded: bool = True) -> Prepared:
        """Mask nothing. Predict every token at its position, or at the previous one (including the final [SEP]); a token
        with nothing before it is not predicted."""
        every = np.ones(len(self.ids), bool)
        if not next_token:
            return replace(self._prepared(self.ids, every, self.ids), word_starts=self.word_starts)
        frames = words.frames(decoded=decoded)
        if not frames[0].before:
            every[(np.cumsum(self.lengths) - self.lengths)[self.lengths > 0]] = False
        prepared = replace(self._prepared(self.ids, every, self.ids), is_next=True, is_decoded=decoded)
        return replace(prepared, end_label=frames[0].after[0] if frames[0].after else None)

    def _prepared(self, ids: Ints, chosen: NDArray[np.bool_], labels: Ints) -> Prepared:
        return Prepared(self.ids, ids, chosen, labels, self.lengths, self.is_query)


@dataclass(frozen=True)
class Prepared:
    """Concatenated, masked texts with their targets (`chosen` tokens, their `labels`). With `is_next`, every prediction
    moves one position forward, and an `end_label` follows the last token. With `word_starts`, padded texts come with the
    numbers of their words. `masked` are the masked tokens, if others are predicted, too.
    """

    original: Ints
    ids: Ints
    chosen: NDArray[np.bool_]
    labels: Ints
    lengths: Ints
    is_query: NDArray[np.bool_] | None = None
    is_next: bool = False
    is_decoded: bool = False
    end_label: int | None = None
    word_starts: NDArray[np.bool_] | None = None
    masked: NDArray[np.bool_] | None = None

    @property
    def total(self) -> float:
        """The number of predictions in these texts, at least 1."""
        ends = 0 if self.end_label is None else len(self.lengths)
        return float(max(1, self.chosen.sum() + ends))

    def widths(self, words: Vocabulary) -> Ints:
        """[N] each text's tokens with those around it."""
        passage, query = words.frames(decoded=self.is_decoded)
        return self.lengths + np.where(self._are_queries(), len(query), len(passage))

    def _are_queries(self) -> NDArray[np.bool_]:
        return np.zeros(len(self.lengths), bool) if self.is_query is None else self.is_query

    def hashes(self) -> Ints:
        """[N] a 63-bit hash of each text before masking."""
        row = np.repeat(np.arange(len(self.lengths)), self.lengths)
        within = np.arange(len(row)) - (np.cumsum(self.lengths) - self.lengths)[row]
        mixed = hashed(0, "text", self.original, within) >> np.uint64(1)
        total = np.zeros(len(self.lengths), np.uint64)
        np.add.at(total, row, mixed)
        return (total >> np.uint64(1)).astype(np.int64)

    def pad(self, rows: Ints, words: Vocabulary, widest: int, grid: Grid) -> Text:
        """The rows as a padded rectangle: [CLS] text [SEP] [PAD] …, at most `widest` wide, as positions may end there."""
        lengths, widths = self.lengths[rows], self.widths(words)[rows]
        frames, of = words.frames(decoded=self.is_decoded), self._are_queries()[rows].astype(int)
        lead = np.array([len(frame.before) for frame in frames])[of]
        width = min(int(grid.padded(widths).max()), widest)
        begins = (np.cumsum(self.lengths) - self.lengths)[rows]
        place = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        row = np.repeat(np.arange(len(rows)), lengths)
        column = place - begins[row] + lead[row]
        ids = np.full((len(rows), width), max(words.pad, 0), np.int64)
        for kind, frame in enumerate(frames):
            ids[of == kind, : len(frame.before)] = frame.before
        ids[row, column] = self.ids[place]
        for number, id in enumerate(frames[0].after):
            ids[np.arange(len(rows)), lead + lengths + number] = id
        mask = np.arange(width) < widths[:, None]

        chosen = self.chosen[place]
        at_row, at_column, labels = row[chosen], column[chosen], self.labels[place[chosen]]
        if self.end_label is not None:
            at_row = np.concatenate([at_row, np.arange(len(rows))])
            at_column = np.concatenate([at_column, lead + lengths])
            labels = np.concatenate([labels, np.full(len(rows), self.end_label)])
        at_column = at_column - int(self.is_next)
        return Text(
            torch.from_numpy(ids),
            torch.from_numpy(mask),
            torch.from_numpy(at_row * width + at_column),
            torch.from_numpy(labels),
            torch.full((len(labels),), 1 / self.total),
            None
            if self.word_starts is None
            else self._words(self.word_starts[place], row, column, lead, ids.shape),
            None if self.masked is None else torch.from_numpy((row * width + column)[self.masked[place]]),
        )

    @staticmethod
    def _words(
        starts: NDArray[np.bool_], row: Ints, column: Ints, lead: Ints, shape: tuple[int, ...]
    ) -> Tensor:
        """[N, T] the number of each token's word, from 1; a text that was cropped may begin inside a word."""
        flags = np.zeros(shape, np.int64)
        flags[row, column] = starts | (column == lead[row])
        words = np.zeros(shape, np.int64)
        words[row, column] = flags.cumsum(1)[row, column]
        return torch.from_numpy(words)


@dataclass(frozen=True)
class Bag(Tensors):
    """The bags that the rows of a micro-batch predict: `texts` [R] are the rows with a bag, `rows` [K] is the place among
    these of a token, and `labels` [K] the token.

    `weights` [K] sum to 1 over the whole batch: every bag weighs the same, and so does every token of a bag.
    """

    texts: Tensor
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
        texts = np.flatnonzero(self.counts[rows])
        lengths = self.counts[rows[texts]]
        begins = (np.cumsum(self.counts) - self.counts)[rows[texts]]
        place = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        columns = texts, np.repeat(np.arange(len(texts)), lengths), self.labels[place], self.weights[place]
        return Bag(*(torch.from_numpy(column) for column in columns))


def _distinct(texts: FlatTexts, words: Vocabulary) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """[K] rows, distinct ordinary tokens and 1 / their number in the text."""
    row = np.repeat(np.arange(len(texts.lengths)), texts.lengths)
    ordinary = ~np.isin(texts.ids, words.special)
    size = 1 + int(texts.ids.max(initial=0))
    row, labels = np.divmod(np.unique(row[ordinary] * size + texts.ids[ordinary]), size)
    return row, labels, 1 / np.bincount(row)[row] if len(row) else np.zeros(0)
