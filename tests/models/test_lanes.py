from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from qontext.models.lanes import MOST, each, lanes_for

CPU = torch.device("cpu")


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

    assert list(each(compute, range(6), CPU)) == [(number, 1, True) for number in range(6)]
    assert torch.get_num_threads() == 3 and not torch.is_inference_mode_enabled()


@pytest.mark.usefixtures("three_threads")
def test_one_batch_has_all_threads() -> None:
    def compute(number: int) -> tuple[int, threading.Thread]:
        return torch.get_num_threads(), threading.current_thread()

    assert list(each(compute, [0], CPU)) == [(3, threading.current_thread())]


@pytest.mark.usefixtures("three_threads")
def test_after_an_error_nothing_more_is_begun() -> None:
    begun = []

    def compute(number: int) -> int:
        begun.append(number)
        if number == 0:
            raise ValueError("damaged")
        return number

    with pytest.raises(ValueError, match="damaged"):
        list(each(compute, range(10_000), CPU))
    assert len(begun) < 10_000


@pytest.mark.usefixtures("three_threads")
def test_threads_that_begin_later_have_what_threads_had_before() -> None:
    results = each(lambda number: number, range(6), CPU)
    found = [next(results)]
    assert of_a_new_thread() == 3, "while lanes run"
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

    assert sorted(each(compute, range(2), CPU)) == [1, 2]


@pytest.mark.usefixtures("three_threads")
def test_what_is_not_read_is_not_computed_once_it_is_closed() -> None:
    begun = []
    with closing(each(begun.append, range(10_000), CPU)) as results:
        next(results)
    number = len(begun)
    assert number < 10_000
    assert of_a_new_thread() == 3 and len(begun) <= number + 3


def test_lanes_share_the_memory_of_attention() -> None:
    config = SimpleNamespace(num_attention_heads=16)
    lengths = np.array([8_192, 512, 512, 100])
    assert lanes_for(lengths, [np.array([0])], config) == 1
    assert lanes_for(lengths, [np.array([1, 2])], config) >= MOST
    some = lanes_for(np.full(8, 2_048), [np.arange(8)], config)
    assert 1 <= some < MOST and some * 8 * 2_048**2 * 16 * 6 <= 4 << 30
