"""Prediction-powered inference on small numbers, and on draws whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from qontext.evaluation.ppi import correct, estimate, t_cdf, t_quantile


@pytest.mark.parametrize(
    ("t", "freedom", "share"), [(2.776445, 4, 0.975), (2.045230, 29, 0.975), (1.960299, 10**4, 0.975)]
)
def test_students_distribution(t: float, freedom: int, share: float) -> None:
    assert t_cdf(t, freedom) == pytest.approx(share, abs=2e-5)
    assert t_cdf(-t, freedom) == pytest.approx(1 - share, abs=2e-5)
    assert t_quantile(share, freedom) == pytest.approx(t, abs=1e-3)


def test_by_hand() -> None:
    """People confirm 1, 0, 1 and reject the last: λ = cov / var = (1/8) / (3/16) = 2/3."""
    machine, people = np.array([1.0, 0, 1, 1, 1, 0, 1, 1]), np.array([1.0, 0, 1, 0])
    one = estimate(machine, people, np.arange(4))
    assert one.weight == pytest.approx(2 / 3)
    assert one.mean == pytest.approx(2 / 3 * 0.75 + (0.5 - 2 / 3 * 0.75))
    rest = people - 2 / 3 * machine[:4]
    assert one.residual == pytest.approx(((rest - rest.mean()) ** 2).sum() / 2)
    assert one.error**2 == pytest.approx(one.residual / 4 + 4 / 9 * machine.var(ddof=1) / 8)


def test_labels_that_say_nothing_are_not_used_and_right_ones_replace_people() -> None:
    random = np.random.default_rng(7)
    machine = random.random(400)
    wrong = estimate(machine, 1 - machine[:30], np.arange(30))
    assert wrong.weight == 0 and wrong.mean == pytest.approx((1 - machine[:30]).mean())
    right = estimate(machine, machine[:30] - 0.1, np.arange(30))
    assert right.weight == pytest.approx(1) and right.mean == pytest.approx(machine.mean() - 0.1)
    assert right.machine == pytest.approx(machine.var(ddof=1))


def test_a_few_people_who_agree_with_the_machine_are_no_certainty() -> None:
    """Two equal systems, of which the machine prefers one on every tenth question: seldom is that a difference."""
    significant = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        true = random.choice([0.5, -0.5, 0], 300, p=[0.15, 0.15, 0.7])
        machine = np.where(random.random(300) < 0.1, 0.5, true)
        judged = random.choice(300, 8, replace=False)
        significant += estimate(machine, true[judged], judged).p < 0.05
    assert significant / 200 < 0.05


def test_intervals_hold_the_truth_and_are_shorter_than_those_of_people_alone() -> None:
    """Machine labels with a bias of .15 and noise: 95 % of the intervals have the truth, .5, although the labels do not."""
    inside, lengths, alone = 0, [], []
    for seed in range(400):
        random = np.random.default_rng(seed)
        true = np.clip(0.5 + 0.25 * random.standard_normal(300), -9, 9)
        machine = true + 0.15 + 0.1 * random.standard_normal(300)
        one = estimate(machine, true[:30], np.arange(30))
        low, high = one.interval()
        inside += low <= 0.5 <= high
        lengths.append(high - low)
        alone.append(2 * t_quantile(0.975, 29) * true[:30].std(ddof=1) / 30**0.5)
    assert 0.92 <= inside / 400 <= 0.98
    assert np.mean(lengths) < 0.6 * np.mean(alone)


def test_the_order_that_people_see_replaces_that_of_the_machine() -> None:
    random = np.random.default_rng(3)
    machine = {"words": random.random(200) * 0.2 + 0.7, "meaning": random.random(200) * 0.2 + 0.5}
    judged = np.arange(0, 200, 5)
    people = {"words": machine["words"][judged] - 0.4, "meaning": machine["meaning"][judged] + 0.1}
    result = correct(machine, people, judged, "nDCG@10")
    assert result.means["meaning"] > result.means["words"] + 0.2
    (pair,) = result.pairs
    assert pair["p"] < 0.001 and pair["difference"]["low"] > 0 and result.missing("meaning") == ("words", 0)


def test_the_number_of_missing_judgments_is_that_with_which_the_difference_is_significant() -> None:
    machine = np.zeros(500)
    people = 0.1 + 0.3 * np.tile([1.0, -1.0], 10)
    one = estimate(machine, people, np.arange(20))
    missing = one.missing()
    assert missing and missing > 5
    t = abs(one.mean) / one.error_with(20 + missing)
    before = abs(one.mean) / one.error_with(20 + missing - 1)
    assert 2 * (1 - t_cdf(t, 19 + missing)) < 0.05 <= 2 * (1 - t_cdf(before, 18 + missing))
    assert estimate(machine, people - people.mean(), np.arange(20)).missing() is None


def test_questions_that_all_say_the_same() -> None:
    flat = estimate(np.zeros(50), np.zeros(6), np.arange(6))
    assert (flat.mean, flat.p, flat.missing()) == (0, 1, None)
    sure = estimate(np.zeros(50), np.full(6, 0.5), np.arange(6))
    assert sure.p == pytest.approx(2**-5) and sure.missing() == 0
    assert sure.interval()[0] < 0.4, "six equal scores are no certainty"
    noisy = estimate(np.zeros(500), np.full(6, 0.1), np.arange(6))
    assert noisy.p == pytest.approx(2**-5), "not decided by rounding"


def test_what_is_missing_is_missing_after_correction() -> None:
    """A difference that is significant alone, but not among the pairs of seven systems, needs more judgments."""
    random = np.random.default_rng(5)
    people = {f"s{n}": 0.5 + 0.2 * random.standard_normal(30) for n in range(6)}
    people["best"] = people["s0"] + 0.02 + 0.05 * np.tile([1.0, -1.0], 15)
    machine = {name: np.full(400, 0.5) for name in people}
    result = correct(machine, people, np.arange(30), "nDCG@10")
    pair = next(pair for pair in result.pairs if {pair["a"], pair["b"]} == {"s0", "best"})
    assert pair["difference"]["p"] < 0.05 < pair["p"] and pair["missing"]
