from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from qontext.models.lanes import each

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
