"""Packing texts of different lengths into rectangular batches, and padding them. Training minimizes padding.
Inference processes the longest first, and texts of one length together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Ints = NDArray[np.int64]
T = TypeVar("T", int, Ints)
MOST_OVER = 4
_TOO_LARGE = 1 << 40


class Grid(NamedTuple):
    """The shapes that rectangles may have: widths are multiples of `width`, and numbers of rows multiples of `rows`,
    except in one rectangle of a batch."""

    width: int
    rows: int

    def padded(self, tokens: T) -> T:
        """The padded width for texts with this number of tokens."""
        return -(-tokens // self.width) * self.width


FINE = Grid(8, 1)
COARSE = Grid(32, 8)
"""For training in bf16 on a CPU: the library compiles a kernel for each new shape of a matrix product, which takes several
times as long as the product itself."""
MEDIUM = Grid(16, 8)
"""For inference in bf16 on a CPU: shapes recur more often, and pay for less padding."""


def grid_for(device: torch.device, dtype: torch.dtype, *, inference: bool = False) -> Grid:
    """The grid for computing in this format on this device."""
    import torch

    if device.type != "cpu" or dtype != torch.bfloat16:
        return FINE
    return MEDIUM if inference else COARSE


def pack_by_tokens(tokens: Ints, also: Ints | None, budget: int, grid: Grid = FINE) -> list[Ints]:
    """Rows sorted by length and split into rectangles of at most `budget` tokens (but at least the grid's rows), with
    minimal total size; an additional rectangle must save `budget / 32` tokens of padding.

    `tokens` [N] are the rows' lengths, including special tokens; `also` those of a decoder's texts, which
    form separate rectangles. The best split of the first i rows ends in a rectangle that begins at some j,
    after the best split of the first j.
    """
    order = np.lexsort((also, tokens)) if also is not None else np.argsort(tokens, kind="stable")
    wide = grid.padded(tokens[order])
    beside = grid.padded(also[order]) if also is not None else np.zeros_like(wide)
    best = np.zeros(len(order) + 1)
    begin = np.zeros(len(order) + 1, np.int64)
    for end in sorted({*range(grid.rows, len(order), grid.rows), len(order)}):
        least = (end - 1) // grid.rows * grid.rows
        begins = np.arange(least, max(0, end - max(1, budget // int(wide[end - 1]))) - 1, -grid.rows)[::-1]
        begins = begins if len(begins) else np.array([least])
        widest = (
            wide[end - 1] + np.maximum.accumulate(beside[begins[0] : end][::-1])[::-1][begins - begins[0]]
        )
        area = (end - begins) * widest
        area[:-1] = np.where(area[:-1] > budget, _TOO_LARGE, area[:-1])
        total = best[begins] + area + budget / 32
        begin[end] = begins[total.argmin()]
        best[end] = total.min()
    cuts, end = [], len(order)
    while end:
        cuts.append(order[begin[end] : end])
        end = int(begin[end])
    return cuts[::-1]


def pad(rows: Sequence[Any], fill: int, width: int | None = None) -> tuple[Ints, NDArray[np.bool_]]:
    """Token ids of several texts as a rectangle [N, T], and its attention mask; T is the length of the longest text."""
    lengths = np.array([len(ids) for ids in rows])
    mask = np.arange(width or int(lengths.max())) < lengths[:, None]
    padded = np.full(mask.shape, fill, np.int64)
    padded[mask] = np.concatenate([np.asarray(ids) for ids in rows])
    return padded, mask


def batches_by_length(lengths: Ints, tokens: int, grid: Grid = FINE) -> Iterator[Ints]:
    """Row numbers of batches of at most `tokens` tokens, padding included, longest texts first.

    With a fine grid, a batch holds texts of one length as long as these fill at least half of it. With a coarse one, all
    batches of a width have the same number of rows, but for the last, and may therefore be larger: up to `MOST_OVER` times.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        stop = start + max(1, tokens // longest)
        width = int(grid.padded(longest))
        if 1 < grid.rows <= MOST_OVER * tokens // width:
            stop = start + max(1, tokens // width // grid.rows) * grid.rows
        elif grid.rows == 1:
            same = int(np.searchsorted(-lengths[order], -longest, side="right"))
            if same < stop and (same - start) * longest * 2 >= tokens:
                stop = same
        yield order[start : min(stop, len(order))]
        start = stop
