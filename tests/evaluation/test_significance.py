"""The tests of significance, by hand where that can be done, and against their own definition elsewhere."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from qontext.evaluation.comparison import (
    bootstrap_interval,
    difference,
    holm,
    mean_and_spread,
    randomization_test,
)


def test_few_queries_are_counted_exactly() -> None:
    # All five differences are +1: of the 32 sign patterns only ±5 are as extreme.
    assert randomization_test(np.ones(5)) == 2 / 32


def test_exact_equals_enumeration_by_definition() -> None:
    delta = np.random.default_rng(0).normal(0.3, 1, 10)
    sums = [abs(sum(s * d for s, d in zip(signs, delta))) for signs in itertools.product((-1, 1), repeat=10)]
    assert randomization_test(delta) == pytest.approx(np.mean([s >= abs(delta.sum()) - 1e-9 for s in sums]))


def test_sampling_comes_close_to_exact() -> None:
    delta = np.random.default_rng(1).normal(0.4, 1, 13)
    exact = randomization_test(delta, permutations=2**13)
    assert randomization_test(delta, permutations=2**13 - 1) == pytest.approx(exact, abs=0.02)


def test_queries_without_difference_change_nothing() -> None:
    delta = np.array([0.5, -0.1, 0.3, 0.2])
    assert randomization_test(np.concatenate([delta, np.zeros(50)])) == randomization_test(delta)
    assert randomization_test(np.zeros(9)) == 1.0


def test_p_is_uniform_when_there_is_no_difference() -> None:
    rng = np.random.default_rng(2)
    p = [randomization_test(rng.normal(0, 1, 40), permutations=999, seed=i) for i in range(400)]
    assert 0.02 < np.mean(np.array(p) < 0.05) < 0.09


def test_never_zero_and_reproducible() -> None:
    delta = np.full(200, 0.5)
    assert randomization_test(delta, permutations=999) == 1 / 1000
    noisy = np.random.default_rng(3).normal(0.05, 1, 300)
    assert randomization_test(noisy, seed=1) == randomization_test(noisy, seed=1)


def test_bootstrap_covers_the_normal_interval() -> None:
    delta = np.random.default_rng(4).normal(0.1, 0.5, 2000)
    low, high = bootstrap_interval(delta)
    half = 1.96 * delta.std() / np.sqrt(len(delta))
    assert low == pytest.approx(delta.mean() - half, abs=half / 8)
    assert high == pytest.approx(delta.mean() + half, abs=half / 8)


def test_holm_by_hand() -> None:
    # Sorted .01 .03 .04: times 3, 2, 1, never falling.
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_wins_losses_ties_and_direction() -> None:
    test = difference(np.array([0.0, 0.5, 0.5, 1.0]), np.array([1.0, 0.5, 0.4, 1.0]))
    assert (test.wins, test.losses, test.ties) == (1, 1, 2)
    assert test.mean == pytest.approx(0.225)
    assert test.low <= test.mean <= test.high


def test_seeds() -> None:
    assert mean_and_spread([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert mean_and_spread([0.4]) == (0.4, None)
