"""Tokenized texts in flat arrays: computed once, kept beside the checkpoints, memory-mapped by every rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qontext.frame.files import damaged, digest_of, read_array
from qontext.models.batching import FINE, Grid, Ints
from qontext.models.encoder import UNLIMITED

BLOCK = 16_384
_ARRAYS = ("ids", "begin", "length", "key")


@dataclass(frozen=True)
class TokenizedTexts:
    """Text number n is ``ids[begin[n] : begin[n] + length[n]]``, special tokens included; `key` is a hash of
    its content."""

    ids: NDArray[np.int32]
    begin: Ints
    length: Ints
    key: Ints

    def pad(
        self, numbers: Ints, pad_id: int, grid: Grid = FINE, most: int = UNLIMITED
    ) -> tuple[Tensor, Tensor]:
        """Tokens [N, T] of these texts, and their attention mask [N, T]; padding goes no further than `most`, as positions
        may end there."""
        lengths = self.length[numbers]
        width = max(int(lengths.max()), min(int(grid.padded(lengths).max()), most))
        row = np.repeat(np.arange(len(numbers)), lengths)
        column = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        padded = np.full((len(numbers), width), pad_id, np.int64)
        padded[row, column] = self.ids[self.begin[numbers][row] + column]
        mask = np.arange(width) < lengths[:, None]
        return torch.from_numpy(padded), torch.from_numpy(mask)

    def save(self, folder: Path) -> None:
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name), allow_pickle=False)

    @classmethod
    def load(cls, folder: Path) -> TokenizedTexts:
        """Load the output of `save`; the cache of an interrupted run may be damaged."""
        texts = cls(*(read_array(folder / f"{name}.npy", "i") for name in _ARRAYS))
        ends = texts.begin + texts.length
        if not len(texts.begin) == len(texts.length) == len(texts.key):
            raise damaged(folder, "its arrays have different lengths")
        if (texts.begin < 0).any() or (texts.length < 0).any() or (ends > len(texts.ids)).any():
            raise damaged(folder, "its texts reach beyond its tokens")
        return texts


def tokenize(texts: Iterable[tuple[int, str]], count: int, tokenizer: Any, limit: int) -> TokenizedTexts:
    """`count` texts, each with its number, in any order; texts longer than `limit` tokens are truncated."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(limit)
    begin, length, key = (np.zeros(count, np.int64) for _ in range(3))
    parts, at = [np.empty(0, np.int32)], 0
    for block in _blocks(texts):
        encodings = backend.encode_batch_fast([text.strip() for _, text in block])
        for (number, text), encoding in zip(block, encodings):
            begin[number], length[number], key[number] = at, len(encoding.ids), text_key(text)
            at += len(encoding.ids)
        parts.append(np.concatenate([np.array(e.ids, np.int32) for e in encodings]))
    return TokenizedTexts(np.concatenate(parts), begin, length, key)


def text_key(text: str) -> int:
    """A 63-bit hash of the text, ignoring surrounding spaces."""
    return int.from_bytes(digest_of(text.strip(), 8)) >> 1


def _blocks(texts: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    rest = iter(texts)
    while block := list(islice(rest, BLOCK)):
        yield block
