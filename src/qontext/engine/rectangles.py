"""Texts of many lengths as few rectangles: sorted, and cut where that leaves the least padding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
PAD_TO = 8
_TOO_LARGE = 1 << 40


def cut_by_budget(tokens: Ints, also: Ints | None, budget: int) -> list[Ints]:
    """Rows sorted by length and cut into rectangles of at most `budget` tokens (but one row at least), so that all
    rectangles together are as small as can be; one more of them must save `budget / 32` tokens of padding.

    `tokens` [N] are the rows' lengths, special tokens included; `also` those of what is read besides, of a decoder's
    texts, which becomes a rectangle of its own. The best cut of the first i rows ends in a rectangle that begins at
    some j, after the best cut of the first j.
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
    """How wide texts of so many tokens become with the padding that suits the hardware."""
    return -(-tokens // PAD_TO) * PAD_TO
