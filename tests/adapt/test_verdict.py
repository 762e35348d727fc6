"""Which system is recommended, and how that is explained, from means and p values alone."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from qontext.adapt.verdict import Measured, choose, encoder_for, explain

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
    assert choose(demo) == "hybrid"
    assert encoder_for("hybrid", DEMO) == "adapted"
    sentences = explain("hybrid", demo)
    assert sentences[0] == "Recommended: BM25 + adapted encoder, nDCG@10 0.728 on 346 real questions."
    assert sentences[1:5] == [
        "0.073 higher than BM25 (0.655; p = .001).",
        "0.036 higher than the original encoder (0.692; p = .034).",
        "Adapting may have helped: BM25 + original encoder 0.716, BM25 + adapted encoder 0.728 (p = .300). "
        "The adapted encoder is kept.",
        "Reason: it has the highest score of 5 systems.",
    ]
    assert not any("candidate" in sentence for sentence in sentences)


def test_more_cost_is_accepted_only_beyond_chance() -> None:
    assert choose(measured(MEANS, 0.01)) == "hybrid"
    assert choose(measured(MEANS, 0.2)) == "bm25"
    assert encoder_for("bm25", MEANS) == "adapted", "that of the best other system"
    with_tokens = {**MEANS, "tokens-start": 0.63, "tokens": 0.67}
    assert choose(measured(with_tokens, 0.2, bm25_tokens=0.01)) == "hybrid"
    assert choose(measured(with_tokens, 0.2, bm25_tokens=0.01, hybrid_tokens=0.02)) == "tokens"


def test_of_equally_good_systems_the_original_encoder_is_taken() -> None:
    means = {"bm25": 0.1, "start": 0.5, "hybrid-start": 0.6, "adapted": 0.5, "hybrid": 0.6}
    assert choose(measured(means, 0.01)) == "hybrid-start"
    assert "Adapting made it worse" in explain("start", measured({**MEANS, "adapted": 0.4}, 0.01))[2]


def test_a_cheaper_system_is_explained_by_what_it_gives_up() -> None:
    sentences = explain("bm25", measured(MEANS, 0.2))
    assert "0.100 higher than the original encoder (0.500; p = .200), which may be chance." in sentences
    assert (
        "Reason: BM25 + adapted encoder has 0.660, 0.060 more (p = .200), but costs more, and the difference may be chance."
        in sentences
    )


def test_a_gain_is_not_explained_by_an_accepted_loss() -> None:
    means = {"bm25": 0.900, "start": 0.8, "hybrid-start": 0.915}
    sentences = explain("hybrid-start", measured(means, 0.443, n=53, is_real=False))
    assert "Reason: it has the highest score of 3 systems." in sentences
    assert not any("below the best" in sentence for sentence in sentences)


def test_generated_questions_do_not_decide_between_near_systems() -> None:
    def chosen(**means: float) -> str:
        means = {"bm25": 0.9, "start": 0.5, "hybrid-start": 0.89, **means}
        return choose(measured(means, 0.3, is_real=False))

    assert chosen() == "hybrid-start"
    assert chosen(**{"hybrid-start": 0.8}) == "bm25"
    assert chosen(**{"tokens-start": 0.88}) == "tokens-start"
    assert chosen(**{"tokens-start": 0.87}) == "hybrid-start"
    # BM25 hides the encoder beside it: the one that is better by itself is taken.
    assert chosen(adapted=0.6, hybrid=0.885) == "hybrid"
    assert chosen(adapted=0.4, hybrid=0.895) == "hybrid-start"
    assert chosen(adapted=0.6, hybrid=0.85) == "hybrid-start"
    sentences = explain(
        "hybrid-start", measured({"bm25": 0.9, "start": 0.5, "hybrid-start": 0.89}, is_real=False)
    )
    assert any(
        "BM25 has 0.900, 0.010 more, but generated questions hardly distinguish" in s for s in sentences
    )


def test_few_questions_are_said_to_be_few() -> None:
    (few,) = (s for s in explain("hybrid", measured(MEANS, 0.01, n=53)) if "are few" in s)
    assert (
        few.startswith("53 questions are few: ") and "below about 0.073 can hardly be told from chance" in few
    )
    assert not any("are few" in sentence for sentence in explain("hybrid", measured(MEANS, 0.01)))
