"""Cutting texts into rectangles, against every way there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qontext.models.packing import FINE, Grid, batches_by_length, pack_by_tokens


@pytest.mark.parametrize("grid", [FINE, Grid(16, 3)], ids=["fine", "coarse"])
@pytest.mark.parametrize("seed", range(6))
def test_the_cuts_are_the_cheapest_there_are(seed: int, grid: Grid) -> None:
    dice = np.random.default_rng(seed)
    texts = dice.integers(3, 62, 9)
    also = dice.integers(3, 62, 9) if seed % 2 else None
    budget = 200

    def cost(cuts: list[Any]) -> float:
        total = 0.0
        for rows in cuts:
            width = -(-int(texts[rows].max()) // grid.width) * grid.width
            if also is not None:
                width += -(-int(also[rows].max()) // grid.width) * grid.width
            if len(rows) > grid.rows and len(rows) * width > budget:
                return float("inf")
            total += len(rows) * width + budget / 32
        return total

    groups = pack_by_tokens(texts, also, budget, grid)
    order = np.concatenate(groups)
    assert sorted(order) == list(range(9))
    every_way = (
        np.split(order, [place for place in range(1, 9) if way >> (place - 1) & 1]) for way in range(2**8)
    )
    every_way = (cuts for cuts in every_way if all(len(cut) % grid.rows == 0 for cut in cuts[:-1]))
    assert cost(groups) == min(map(cost, every_way)) < float("inf")


def test_on_a_coarse_grid_batches_of_a_width_have_one_number_of_rows() -> None:
    lengths = np.random.default_rng(3).integers(1, 200, 500)
    grid = Grid(32, 8)
    batches = list(batches_by_length(lengths, 1_000, grid))
    assert sorted(np.concatenate(batches)) == list(range(500))
    shapes = [(len(rows), int(grid.padded(int(lengths[rows].max())))) for rows in batches]
    assert len(set(shapes[:-1])) == len({width for _, width in shapes[:-1]})
    assert all(rows % 8 == 0 and rows * width <= max(1_000, 8 * width) for rows, width in shapes[:-1])


def test_long_texts_are_computed_in_few_rows() -> None:
    grid = Grid(16, 8)
    assert {len(rows) for rows in batches_by_length(np.full(24, 500), 1_024, grid)} == {8}
    assert {len(rows) for rows in batches_by_length(np.full(24, 600), 1_024, grid)} == {1}
    assert {len(rows) for rows in batches_by_length(np.full(24, 600), 2_048, grid)} == {8}
    assert {len(rows) for rows in batches_by_length(np.full(24, 8_192), 1_024, grid)} == {1}
