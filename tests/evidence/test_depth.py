"""The study at depth: its registered verdicts follow from the cells, by hand, and its tables hold what was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qontext.evaluation.comparison import Difference

SETS = ("squad_pool", "squadshifts_wiki_pool", "fairytaleqa", "medquad")


def cell(arm: str, target: str, scores: dict[str, list[float]], seed: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "scale": "depth",
        "set": f"joint to {target}",
        "arm": arm,
        "seed": seed,
        "start": "the same",
        "seconds": {f"pretrain-{arm}-{seed}": 480.0},
        "scores": {
            labels: {"MRR@10": of, "nDCG@10": [value / 2 for value in of], "R@100": of}
            for labels, of in scores.items()
        },
    } | more


def test_sets_count_equally_however_many_questions_they_have(modules: Any) -> None:
    """Means of .2 and .1: the difference is .15, where the mean over the questions is .9 / 6.

    Each question of the first weighs 1/4, of the second 1/8: .125 - .025 and four times .0125, .15 in sum. Of the 64 signs
    these reach .15 in absolute value: .125 + .025 with a sum of the four of at least 0 (6 + 4 + 1), and .125 - .025 with all
    four (1); as many negative ones."""
    sets = [
        (np.array([0.0, 0.1]), np.array([0.5, 0.0]), np.arange(2)),
        (np.array([0.2, 0.3, 0.4, 0.5]), np.array([0.3, 0.4, 0.5, 0.6]), np.arange(4)),
    ]
    d = modules["differences"].over_sets(sets)
    assert d.mean == pytest.approx(0.15) and d.p == pytest.approx(24 / 64)
    assert (d.wins, d.losses, d.ties) == (5, 1, 0)
    # The first set's changes are .5 and -.1: a standard error of .3, half of which counts, with one degree of freedom.
    assert (d.low, d.high) == pytest.approx((0.15 - 12.7062 * 0.15, 0.15 + 12.7062 * 0.15), rel=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "seeds", "word"),
    [
        (0.006, 0.020, (1, 2), "reproduced"),
        (0.004, 0.020, (1, 2), "inconclusive"),
        (-0.020, -0.006, (1, 2), "contradicted"),
        (-0.020, 0.001, (1, 2), "inconclusive"),
        (-0.004, 0.004, (1, 2), "no effect that matters"),
        (0.001, 0.004, (1, 2), "no effect that matters"),
        (0.006, 0.020, (1,), "not measured yet"),
    ],
)
def test_the_word_follows_from_the_interval_and_the_margin(
    modules: Any, low: float, high: float, seeds: tuple[int, ...], word: str
) -> None:
    d = Difference((low + high) / 2, low, high, p=0.01, wins=1, losses=0, ties=0)
    assert modules["depth"].Comparison("a", "b", "1", seeds, d).verdict == word


def pair(
    passages: float, queries: float, arms: str = "cot-mae", seeds: tuple[int, ...] = (1, 2)
) -> list[Any]:
    """Cells of both arms: on each set, all ten questions have the same value."""
    return [
        cell(f"{arms}-{context}", target, {"34000": [value] * 10, "34000+mined": [value / 2] * 10}, seed)
        for context, value in (("passage", passages), ("query", queries))
        for target in SETS
        for seed in seeds
    ]


def test_the_primary_comparisons_are_four_and_corrected_together(modules: Any) -> None:
    primary = modules["depth"].primary
    found = primary([*pair(0.50, 0.52), *pair(0.6, 0.6, "cocondenser")])
    names = [(one.baseline, one.candidate, one.retriever) for one in found]
    assert names == [
        (f"{method}-passage", f"{method}-query", retriever)
        for method in ("cot-mae", "cocondenser")
        for retriever in ("1", "2")
    ]
    assert [one.difference.mean for one in found] == pytest.approx([0.02, 0.01, 0, 0])
    assert [one.verdict for one in found] == ["reproduced"] * 2 + ["no effect that matters"] * 2
    assert rows(modules["depth"].compared_table(found))[1][2:5] == ["2", "+1.00, +1.00", "+1.00"]
    assert [one.p for one in found] == pytest.approx([0, 0, 1, 1]), (
        "all questions differ by as much, or not at all"
    )


def test_a_verdict_needs_both_seeds_on_all_sets_and_one_start(modules: Any) -> None:
    primary = modules["depth"].primary
    assert {one.verdict for one in primary([])} == {"not measured yet"}
    assert {one.verdict for one in primary(pair(0.5, 0.6, seeds=(1,)))} == {"not measured yet"}
    (first, *_) = primary(
        [one for one in pair(0.5, 0.6) if (one["set"], one["seed"]) != ("joint to medquad", 2)]
    )
    assert first.seeds == (1,) and first.verdict == "not measured yet"
    cells = pair(0.5, 0.6)
    cells[0]["start"] = "another"
    with pytest.raises(SystemExit, match="cells of 2 starts"):
        primary(cells)


def rows(table: Any) -> list[list[str]]:
    return [[one.text for one in row.cells] for row in table.rows]


def test_rows_are_means_over_sets_and_zero_shot_needs_all_of_them(modules: Any) -> None:
    values = dict(zip(SETS, (0.1, 0.2, 0.3, 0.4)))
    cells = [cell("mlm", target, {"0": [value], "34000": [1.0]}) for target, value in values.items()]
    targets = modules["study"].ZERO_SHOT
    cells += [cell("mlm", target, {"0": [0.2]}) for target in targets]
    cells += [cell("none", target, {"0": [0.2]}) for target in targets[1:]]
    tables = modules["depth"].tables(cells)
    assert tables["depth_arms"].columns == ["pre-training", "seeds", "no labels", "34,000 labels"]
    assert rows(tables["depth_arms"]) == [["MLM", "1", ".250", "1.000"]]
    assert rows(tables["depth_zero_shot"]) == [["MLM", "1", ".100"]]
    assert rows(tables["depth_sets"])[0][:4] == ["MLM", ".100", "1.000", "–"]
    assert not tables["depth_primary"].rows


def test_curves_are_shares_of_the_steps_and_of_the_seconds(modules: Any) -> None:
    """Eight minutes: a snapshot after an eighth took one."""
    reached = {"none": 0.1, "mlm-at-1": 0.2, "mlm-at-4": 0.3, "mlm": 0.4}
    cells = [cell(arm, target, {"0": [value]}) for arm, value in reached.items() for target in SETS]
    drawn = modules["curves"].snapshot_curves(cells)
    values = pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert set(drawn) == {"steps-depth", "minutes-depth"}
    for name, amounts in {"steps-depth": (0, 625, 2500, 5000), "minutes-depth": (0, 1, 4, 8)}.items():
        at, means = zip(*drawn[name]["MLM"])
        assert at == amounts and list(means) == values
    assert set(modules["curves"].depth_curves(cells)) == set(drawn)


def test_pilots_are_a_table_of_learning_rates_and_no_arms(modules: Any) -> None:
    cells = [
        cell(
            f"mlm-lr{rate:g}",
            "squad_pool",
            {"0": [0.0], "4000": [value], "4000+bm25": [0.9]},
            scale="depth-pilot",
        )
        for rate, value in {1e-4: 0.1, 3e-4: 0.3}.items()
    ]
    table = modules["depth"].tables(cells)["depth_rates"]
    assert table.columns == ["pre-training", "0.0001", "0.0003", "0.001"]
    assert rows(table) == [["MLM", ".100", ".300", "–"]]
    assert modules["systems"].systems_of(cells) == {}


def test_cells_at_depth_change_no_verdict_of_the_first_study(modules: Any) -> None:
    tables = modules["page"].tables_of(pair(0.2, 0.5, "cocondenser"))
    assert not tables["differences"].rows and tables["depth_primary"].rows
