"""Which system is recommended, and how that is explained, from means and p values alone."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qontext.adapt.show import gained
from qontext.adapt.verdict import (
    MEASURE,
    PRIORS,
    Measured,
    choose,
    compared_with,
    encoder_for,
    evidence,
    expected,
    explain,
)

MEANS = {"bm25": 0.60, "start": 0.50, "hybrid-start": 0.62, "adapted": 0.58, "hybrid": 0.66}
DEMO = {"bm25": 0.655, "start": 0.692, "hybrid-start": 0.716, "adapted": 0.704, "hybrid": 0.728}


def measured(
    means: dict[str, float],
    p: float = 0.2,
    *,
    n: int = 346,
    is_real: bool = True,
    **special: float,
) -> Measured:
    """All pairs with the same p, apart from special ones, such as `bm25_hybrid`."""

    def pair(a: str, b: str) -> dict[str, Any]:
        change = means[b] - means[a]
        spread = {"mean": change, "low": change - 0.0392, "high": change + 0.0392}
        return {"a": a, "b": b, "difference": spread, "p": special.get(f"{a}_{b}".replace("-", "_"), p)}

    return Measured(means, [pair(a, b) for a, b in combinations(means, 2)], n, is_real)


def test_systems_of_equal_cost_are_compared_as_they_are() -> None:
    """The adapted encoder by itself is not significantly better than the original one; the system with it is the best."""
    demo = measured(DEMO, 0.3, start_adapted=0.729, start_hybrid=0.034, bm25_start=0.012, bm25_hybrid=0.001)
    assert choose(DEMO) == "hybrid"
    assert encoder_for("hybrid", DEMO) == "adapted"
    sentences = explain("hybrid", demo, DEMO)
    assert sentences[0] == "Recommended: BM25 + adapted encoder, nDCG@10 0.728 on 346 real questions."
    assert sentences[1:5] == [
        "0.073 higher than BM25 (0.655; p = .001).",
        "0.036 higher than the original encoder (0.692; p = .034).",
        "Adapting may have helped: BM25 + original encoder 0.716, BM25 + adapted encoder 0.728 (p = .300). "
        "The adapted encoder is kept.",
        "Reason: it has the highest score of 5 systems.",
    ]
    assert not any("candidate" in sentence for sentence in sentences)


def test_a_step_of_cost_has_to_gain_its_margin() -> None:
    assert choose({"bm25": 0.600, "start": 0.5, "hybrid-start": 0.604}) == "bm25"
    assert choose({"bm25": 0.600, "start": 0.5, "hybrid-start": 0.606}) == "hybrid-start"
    assert choose({"bm25": 0.600, "hybrid": 0.606, "tokens": 0.610}) == "hybrid"
    assert choose({"bm25": 0.600, "hybrid": 0.604, "tokens": 0.611}) == "tokens"
    assert encoder_for("bm25", MEANS) == "adapted", "that of the best other system"


def test_of_equally_good_systems_the_original_encoder_is_taken() -> None:
    means = {"bm25": 0.1, "start": 0.5, "hybrid-start": 0.6, "adapted": 0.5, "hybrid": 0.6}
    assert choose(means) == "hybrid-start"
    worse = {**MEANS, "adapted": 0.4}
    assert "Adapting made it worse" in explain("start", measured(worse, 0.01), worse)[2]


def test_a_system_below_the_best_is_explained() -> None:
    sentences = explain("bm25", measured(MEANS, 0.2), {**MEANS, "hybrid": 0.604})
    assert "0.100 higher than the original encoder (0.500; p = .200), which may be chance." in sentences
    assert (
        "Reason: BM25 + adapted encoder has 0.660, 0.060 more (p = .200), but costs more: a gain of 0.004 is expected on "
        "other questions, and 0.005 is asked for each step of cost." in sentences
    )
    sentences = explain("bm25", measured(MEANS, 0.2, n=30), {**MEANS, "hybrid": 0.59})
    assert (
        "Reason: BM25 + adapted encoder has 0.660, 0.060 more (p = .200), but 30 questions are not the only evidence: with "
        "what such systems had on other documents, it is expected to have 0.010 less." in sentences
    )


def test_few_questions_are_said_to_be_few() -> None:
    (few,) = (s for s in explain("hybrid", measured(MEANS, 0.01, n=53), MEANS) if "are few" in s)
    assert (
        few.startswith("53 questions are few: ") and "below about 0.073 can hardly be told from chance" in few
    )
    assert not any("are few" in sentence for sentence in explain("hybrid", measured(MEANS, 0.01), MEANS))
    alike = replace(measured(MEANS, n=1), pairs=[
        {**pair, "difference": dict.fromkeys(("mean", "low", "high"), 0.0)} for pair in measured(MEANS).pairs
    ])  # fmt: skip
    assert "1 questions are few, and these hardly show a difference between systems." in explain(
        "hybrid", alike, MEANS
    )


@pytest.mark.parametrize(
    ("system", "line"),
    [
        ("hybrid", r"BM25 \+ adapted encoder has nDCG@10 0\.660, 0\.040 more than .*, which may be chance"),
        ("bm25", r"Nothing that was tried gains enough over BM25 \(nDCG@10 0\.600\)"),
        (
            "start",
            r"Original encoder, which is recommended, is not better here than BM25 \(nDCG@10 0\.600\)",
        ),
    ],
)
def test_what_was_gained_is_one_line(system: str, line: str) -> None:
    means = {name: mean for name, mean in MEANS.items() if system != "start" or name in ("bm25", "start")}
    means = means if system != "bm25" else {"bm25": 0.6, "start": 0.5, "hybrid": 0.604}
    verdict: Any = SimpleNamespace(
        system=system,
        split="test",
        differences=[],
        scores={"test": {n: {MEASURE: m} for n, m in means.items()}},
    )
    assert re.match(line, gained(verdict))


def test_expectation_is_the_posterior_mean_of_a_normal_model() -> None:
    values = {
        "bm25": np.array([0.5, 0.7, 0.6, 0.4]),
        "hybrid-start": np.array([0.6, 0.6, 0.8, 0.4]),
        "tokens": np.array([0.9, 0.6, 0.8, 0.5]),
    }
    prior, change = PRIORS["tokens"], np.array([0.3, 0.0, 0.0, 0.1])
    variance = max(change.var(ddof=1), (3 * change.var(ddof=1) + 4 * 0.25**2) / 7) / 4
    real, generated = (evidence(values, is_real=is_real) for is_real in (True, False))
    weights = (1 / prior.tau**2, 1 / variance)
    by_real = (weights[0] * prior.m + weights[1] * change.mean()) / sum(weights)
    assert expected([real])["tokens"] == pytest.approx(by_real)
    weights = (1 / prior.tau**2, 1 / variance, 1 / (prior.beta**2 + variance))
    means = (prior.m, change.mean(), change.mean() - prior.b)
    by_both = sum(w * m for w, m in zip(weights, means)) / sum(weights)
    assert expected([real, generated])["tokens"] == pytest.approx(by_both)
    assert expected([real])["hybrid-start"] == 0


def test_with_hundreds_of_real_questions_these_decide() -> None:
    rng = np.random.default_rng(0)
    base = rng.random(2_000)
    values = {name: base + 0.05 * (name == "bm25") + 0.01 * rng.random(2_000) for name in PRIORS}
    assert choose(expected([evidence(values, is_real=True)])) == "bm25"
    few = {name: column[:5] for name, column in values.items()}
    noisy = {name: column + rng.normal(0, 0.4, 5) for name, column in few.items()}
    assert choose(expected([evidence(noisy, is_real=True)])) == "tokens", (
        "with five, what other documents said"
    )


def test_a_few_questions_that_all_say_the_same_are_not_certain() -> None:
    """All systems find the answers of four real questions; five hundred generated ones tell them apart."""
    names = ("bm25", "start", "hybrid-start", "tokens-start", "adapted", "hybrid", "tokens")
    changes = {"bm25": -0.1, "tokens": 0.04, "tokens-start": 0.03}
    rng = np.random.default_rng(0)
    generated = {name: 0.6 + changes.get(name, 0.0) + 0.01 * rng.standard_normal(500) for name in names}
    real = evidence({name: np.ones(4) for name in names}, is_real=True)
    found = expected([real, evidence(generated, is_real=False)])
    assert choose(found) == "tokens" and found["bm25"] < -0.01
    many = evidence({name: np.full(400, 0.5 + (name == "bm25")) for name in names}, is_real=True)
    assert choose(expected([many, evidence(generated, is_real=False)])) == "bm25"


def test_equally_good_systems_are_said_to_be() -> None:
    means = dict.fromkeys(("bm25", "start", "hybrid-start"), 1.0)
    reason = "Reason: none of the 3 systems has a higher score; 2 others have the same."
    assert reason in explain("hybrid-start", measured(means, 1.0), means)
    better = {**means, "bm25": 0.5}
    assert any("; 1 other has the same." in s for s in explain("start", measured(better), better))


def test_a_search_with_the_same_score_is_neither_better_nor_worse() -> None:
    pairs = [{"a": "bm25", "b": name, "p": 1.0} for name in ("mine", "other")]
    found = Measured({"bm25": 0.5}, pairs, 300, True)
    same, other = compared_with("bm25", {"mine": 0.5, "other": 0.4}, found)
    assert same == "mine has 0.500, the same."
    assert other.startswith("other has 0.400, 0.100 less") and "not clearly better than other" in other
