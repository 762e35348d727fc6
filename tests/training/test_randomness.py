"""Counter-based random numbers: pure, well spread, and shuffles that are bijections."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qontext.training.randomness import below, generator, hashed, key_of, permuted, sample_names, uniform


def test_numbers_depend_on_every_counter_and_on_nothing_else() -> None:
    one = uniform(42, "mask", np.arange(1000), 3)
    assert np.array_equal(one, uniform(42, "mask", np.arange(1000), 3))
    assert np.array_equal(one[500:], uniform(42, "mask", np.arange(500, 1000), 3))
    for other in (uniform(43, "mask", np.arange(1000), 3), uniform(42, "crop", np.arange(1000), 3)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.1
    assert abs(np.corrcoef(one, uniform(42, "mask", np.arange(1000), 4))[0, 1]) < 0.1


def test_uniform_is_uniform() -> None:
    numbers = uniform(1, "test", np.arange(200_000))
    counts, _ = np.histogram(numbers, 50, (0, 1))
    assert ((counts - 4000) ** 2 / 4000).sum() < 90  # chi-square, 49 degrees of freedom, p ≈ 0.0003
    assert set(below(7, 1, "die", np.arange(500))) == set(range(7))


@given(st.integers(1, 5000), st.integers(0, 2**63), st.integers(0, 5))
def test_a_shuffle_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(permuted(np.arange(size), size, seed, epoch)), np.arange(size))


def test_a_shuffle_differs_by_epoch_and_leaves_little_in_place() -> None:
    first, second = (permuted(np.arange(10_000), 10_000, 42, epoch) for epoch in (0, 1))
    assert (first == np.arange(10_000)).sum() < 10
    assert (first == second).sum() < 10
    assert abs(np.corrcoef(first, np.arange(10_000))[0, 1]) < 0.05


def test_streams_are_64_bits_wide() -> None:
    assert len(np.unique(hashed(0, "x", np.arange(100_000)))) == 100_000
    with pytest.raises(TypeError):
        hashed(0)  # type: ignore[call-arg]


def test_what_is_drawn_for_a_name_is_what_earlier_versions_drew() -> None:
    assert key_of("p-1") == 3661949847
    assert generator(7, "random", "q1").permutation(6).tolist() == [3, 5, 2, 1, 0, 4]
    assert sample_names((f"q{n}" for n in reversed(range(9))), 3, 42) == ["q2", "q3", "q8"]
