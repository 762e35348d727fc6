"""Which system is named, from means and p-values alone."""

from __future__ import annotations

from qontext.adapt.verdict import _because, _helped, _preferred, _with_generated

MEANS = {"bm25": 0.60, "start": 0.50, "adapted": 0.58, "hybrid-start": 0.62, "hybrid": 0.66}


def p_values(p: float) -> dict[tuple[str, str], tuple[float, float]]:
    names = list(MEANS)
    return {(a, b): (MEANS[b] - MEANS[a], p) for n, a in enumerate(names) for b in names[n + 1 :]}


def test_a_better_system_is_taken_only_beyond_chance() -> None:
    systems = ["bm25", "adapted", "hybrid"]
    assert _preferred(systems, MEANS, p_values(0.01)) == "hybrid"
    assert _preferred(systems, MEANS, p_values(0.2)) == "bm25"


def test_the_adapted_encoder_must_earn_its_place() -> None:
    assert _helped(MEANS, p_values(0.01), 50)[0] == "adapted"
    encoder, sentence = _helped(MEANS, p_values(0.2), 50)
    assert encoder == "start"
    assert "no significant difference" in sentence
    worse = {**MEANS, "adapted": 0.4}
    encoder, sentence = _helped(worse, p_values(0.01), 50)
    assert encoder == "start"
    assert "worse" in sentence


def test_a_choice_is_explained_by_the_figures_that_it_compared() -> None:
    systems = ["bm25", "adapted", "hybrid"]
    highest = _because("hybrid", systems, MEANS, p_values(0.01), 50)
    assert "scores highest" in highest
    assert "BM25 (by words): +0.060, p = .010, n = 50" in highest
    assert "the adapted encoder: +0.080, p = .010, n = 50" in highest
    simplest = _because("bm25", systems, MEANS, p_values(0.2), 50)
    assert (
        "simplest system that the best one, BM25 and the adapted encoder, does not significantly beat"
        in simplest
    )
    assert "(+0.060, p = .200, n = 50)" in simplest
    # The recommended system is not the top row, whose encoder is not the one that is kept.
    kept = _because("bm25", ["bm25", "start", "hybrid-start"], MEANS, p_values(0.2), 50)
    assert "BM25 and the adapted encoder (0.660) is not a candidate" in kept
    first = _because("hybrid", ["hybrid", "bm25"], MEANS, p_values(0.2), 50)
    assert first == (
        "Reason: it scores highest and is the simplest (next: BM25 (by words): -0.060, p = .200, n = 50)."
    )


def test_without_real_questions_more_is_compared_unless_it_is_much_worse() -> None:
    def chosen(system: str, **means: float) -> tuple[str, str]:
        means = {"bm25": 0.9, "start": 0.5, "hybrid-start": 0.89, **means}
        pairs = {(a, b): (means[b] - means[a], 0.3) for a in means for b in means}
        return _with_generated(system, "why", "hybrid-start", means, pairs, 50)

    assert chosen("bm25")[0] == "hybrid-start"
    assert (
        "BM25 alone by -0.010, and a loss of up to 0.020 is accepted (-0.010, p = .300, n = 50)"
        in chosen("bm25")[1]
    )
    assert chosen("bm25", **{"hybrid-start": 0.8}) == ("bm25", "why")
    system, because = chosen("bm25", **{"tokens-start": 0.88})
    assert system == "tokens-start" and "BM25 and the original encoder by -0.010" in because
    assert chosen("hybrid-start", **{"tokens-start": 0.95})[0] == "tokens-start"
    assert chosen("hybrid-start", **{"tokens-start": 0.86}) == ("hybrid-start", "why")
    assert chosen("bm25", **{"hybrid-start": 0.8, "tokens-start": 0.89})[0] == "tokens-start"
    assert chosen("start", **{"tokens-start": 0.95}) == ("start", "why"), "BM25 is of no use there"
