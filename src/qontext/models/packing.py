"""Packing texts of different lengths into rectangular batches, and padding them. Training minimizes padding.
Inference processes the longest first, and texts of one length together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
PAD_TO = 8
_TOO_LARGE = 1 << 40


def pack_by_tokens(tokens: Ints, also: Ints | None, budget: int) -> list[Ints]:
    """Rows sorted by length and split into rectangles of at most `budget` tokens (but at least one row), with
    minimal total size; an additional rectangle must save `budget / 32` tokens of padding.

    `tokens` [N] are the rows' lengths, including special tokens; `also` those of a decoder's texts, which
    form separate rectangles. The best split of the first i rows ends in a rectangle that begins at some j,
    after the best split of the first j.
    """
    order = np.lexsort((also, tokens)) if also is not None else np.argsort(tokens, kind="stable")
    wide = padded_width(tokens[order])
    beside = padded_width(also[order]) if also is not None else np.zeros_like(wide)
    best = np.zeros(len(order) + 1)
    begin = np.zeros(len(order) + 1, np.int64)
    for end in range(1, len(order) + 1):
        lowest = max(0, end - max(1, budget // int(wide[end - 1])))
        widest = wide[end - 1] + np.maximum.accumulate(beside[lowest:end][::-1])[::-1]
        area = (end - np.arange(lowest, end)) * widest
        area[:-1] = np.where(area[:-1] > budget, _TOO_LARGE, area[:-1])
        total = best[lowest:end] + area + budget / 32
        begin[end] = lowest + int(total.argmin())
        best[end] = total.min()
    cuts, end = [], len(order)
    while end:
        cuts.append(order[begin[end] : end])
        end = int(begin[end])
    return cuts[::-1]


def padded_width(tokens: Ints) -> Ints:
    """The padded width for texts with this number of tokens, rounded for the hardware."""
    return -(-tokens // PAD_TO) * PAD_TO


def pad(rows: Sequence[Any], fill: int, width: int | None = None) -> tuple[Ints, NDArray[np.bool_]]:
    """Token ids of several texts as a rectangle [N, T], and its attention mask; T is the length of the longest text."""
    lengths = np.array([len(ids) for ids in rows])
    mask = np.arange(width or int(lengths.max())) < lengths[:, None]
    padded = np.full(mask.shape, fill, np.int64)
    padded[mask] = np.concatenate([np.asarray(ids) for ids in rows])
    return padded, mask


def batches_by_length(lengths: Ints, tokens: int) -> Iterator[Ints]:
    """Row numbers of batches of at most `tokens` tokens, padding included, longest texts first.

    A batch holds texts of one length as long as these fill at least half of it.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        stop = start + max(1, tokens // longest)
        same = int(np.searchsorted(-lengths[order], -longest, side="right"))
        if same < stop and (same - start) * longest * 2 >= tokens:
            stop = same
        yield order[start : min(stop, len(order))]
        start = stop
