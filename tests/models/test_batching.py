"""Cutting texts into rectangles, against every way there is; batches on one thread each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from qontext.models.batching import (
    FINE,
    MOST_THREADS,
    Grid,
    batches_by_length,
    pack_by_tokens,
    thread_batches,
    threads_for,
)  # fmt: skip

CPU = torch.device("cpu")


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


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_batches_are_computed_at_the_same_time_and_come_in_their_order() -> None:
    all_there = threading.Barrier(3, timeout=60)

    def compute(number: int) -> tuple[int, int, bool]:
        all_there.wait()  # breaks unless three are computed at once
        return number, torch.get_num_threads(), torch.is_inference_mode_enabled()

    assert list(thread_batches(compute, range(6), CPU)) == [(number, 1, True) for number in range(6)]
    assert torch.get_num_threads() == 3 and not torch.is_inference_mode_enabled()


@pytest.mark.usefixtures("three_threads")
def test_one_batch_has_all_threads() -> None:
    def compute(number: int) -> tuple[int, threading.Thread]:
        return torch.get_num_threads(), threading.current_thread()

    assert list(thread_batches(compute, [0], CPU)) == [(3, threading.current_thread())]


@pytest.mark.usefixtures("three_threads")
def test_after_an_error_nothing_more_is_begun() -> None:
    begun = []

    def compute(number: int) -> int:
        begun.append(number)
        if number == 0:
            raise ValueError("damaged")
        return number

    with pytest.raises(ValueError, match="damaged"):
        list(thread_batches(compute, range(10_000), CPU))
    assert len(begun) < 10_000


@pytest.mark.usefixtures("three_threads")
def test_threads_that_begin_later_have_what_threads_had_before() -> None:
    results = thread_batches(lambda number: number, range(6), CPU)
    found = [next(results)]
    assert of_a_new_thread() == 3, "while batches run"
    found += results
    assert found == list(range(6)) and of_a_new_thread() == 3


def of_a_new_thread() -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


@pytest.mark.usefixtures("three_threads")
def test_all_threads_are_shared_out() -> None:
    both_there = threading.Barrier(2, timeout=60)

    def compute(number: int) -> int:
        both_there.wait()
        return torch.get_num_threads()

    assert sorted(thread_batches(compute, range(2), CPU)) == [1, 2]


@pytest.mark.usefixtures("three_threads")
def test_what_is_not_read_is_not_computed_once_it_is_closed() -> None:
    begun = []
    with closing(thread_batches(begun.append, range(10_000), CPU)) as results:
        next(results)
    number = len(begun)
    assert number < 10_000
    assert of_a_new_thread() == 3 and len(begun) <= number + 3


def test_threads_share_the_memory_of_attention() -> None:
    config = SimpleNamespace(num_attention_heads=16)
    lengths = np.array([8_192, 512, 512, 100])
    assert threads_for(lengths, [np.array([0])], config) == 1
    assert threads_for(lengths, [np.array([1, 2])], config) >= MOST_THREADS
    some = threads_for(np.full(8, 2_048), [np.arange(8)], config)
    assert 1 <= some < MOST_THREADS and some * 8 * 2_048**2 * 16 * 6 <= 4 << 30
