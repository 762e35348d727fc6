"""Cutting texts into rectangles, against every way there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qontext.models.packing import pack_by_tokens


@pytest.mark.parametrize("seed", range(6))
def test_the_cuts_are_the_cheapest_there_are(seed: int) -> None:
    dice = np.random.default_rng(seed)
    texts = dice.integers(3, 62, 9)
    also = dice.integers(3, 62, 9) if seed % 2 else None
    budget = 200

    def cost(cuts: list[Any]) -> float:
        total = 0.0
        for rows in cuts:
            width = -(-int(texts[rows].max()) // 8) * 8
            if also is not None:
                width += -(-int(also[rows].max()) // 8) * 8
            if len(rows) > 1 and len(rows) * width > budget:
                return float("inf")
            total += len(rows) * width + budget / 32
        return total

    found = pack_by_tokens(texts, also, budget)
    order = np.concatenate(found)
    assert sorted(order) == list(range(9))
    every_way = (
        np.split(order, [place for place in range(1, 9) if way >> (place - 1) & 1]) for way in range(2**8)
    )
    assert cost(found) == min(map(cost, every_way)) < float("inf")
