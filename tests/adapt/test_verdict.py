"""Which system is named, from means and p-values alone."""

from __future__ import annotations

from qontext.adapt.verdict import _helped, _preferred

MEANS = {"bm25": 0.60, "start": 0.50, "adapted": 0.58, "hybrid-start": 0.62, "hybrid": 0.66}


def p_values(p: float) -> dict[tuple[str, str], tuple[float, float]]:
    names = list(MEANS)
    return {(a, b): (MEANS[b] - MEANS[a], p) for n, a in enumerate(names) for b in names[n + 1 :]}


def test_a_better_system_is_taken_only_beyond_chance() -> None:
    systems = ["bm25", "adapted", "hybrid"]
    assert _preferred(systems, MEANS, p_values(0.01)) == "hybrid"
    assert _preferred(systems, MEANS, p_values(0.2)) == "bm25"


def test_the_adapted_encoder_must_earn_its_place() -> None:
    assert _helped(MEANS, p_values(0.01))[0] == "adapted"
    encoder, sentence = _helped(MEANS, p_values(0.2))
    assert encoder == "start"
    assert "chance" in sentence
    worse = {**MEANS, "adapted": 0.4}
    encoder, sentence = _helped(worse, p_values(0.01))
    assert encoder == "start"
    assert "worse" in sentence
