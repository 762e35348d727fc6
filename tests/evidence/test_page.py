"""Verdicts follow from the cells, and the pages hold their figures and no others."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.evidence.conftest import HERE

from qontext.evaluation.comparison import Difference

RESULTS = HERE.parent / "docs" / "results"


def test_every_arm_is_a_recipe_whose_settings_are_accepted(modules: Any, tmp_path: Path) -> None:
    study, steps = modules["study"], modules["steps"]
    places = steps.Places(
        "data", "start", "gold", "upper", "lower", question_model="model", teacher="teacher"
    )
    at_depth = replace(places, target="another")
    cells = [(study.Cell("minilm", "set", arm, 1), places) for arm in study.ARMS]
    cells += [(study.Cell("depth", "joint", study.named(arm), 1, "another"), at_depth) for arm in study.DEPTH]
    for cell, where in cells:
        for step in steps.recipe(cell, study.SCALES[cell.scale], where).steps:
            step.configure(tmp_path)


@pytest.mark.parametrize(("passages", "mined"), [(2, 8), (4, 8), (16, 15)])
def test_as_many_negatives_are_mined_as_fine_tuning_shows(modules: Any, passages: int, mined: int) -> None:
    study, steps = modules["study"], modules["steps"]
    cell = study.Cell("depth", "joint", study.named("none"), 1, "another")
    scale = replace(study.SCALES["depth"], finetune_passages=passages)
    made = {
        step.name: step.settings
        for step in steps.recipe(cell, scale, steps.Places("data", "start", "gold", target="another")).steps
    }
    groups = [settings["per_query"] for name, settings in made.items() if name.startswith("groups-")]
    assert groups == [mined] * 2, "BM25's and those of retriever 1"
    assert made["finetune-none-1-34000"]["passages_per_query"] == passages


def test_every_claim_names_arms(modules: Any) -> None:
    names = {arm.name for arm in modules["study"].ARMS}
    for claim in modules["claims"].CLAIMS:
        assert {name for pair in claim.pairs for name in pair} <= names
        assert claim.pairs


def cell(arm: str, values: list[float], seed: int = 1) -> dict[str, Any]:
    scores = dict.fromkeys(("MRR@10", "nDCG@10", "R@100"), values)
    return {
        "scale": "small",
        "set": "stories",
        "arm": arm,
        "seed": seed,
        "scores": {"0": scores},
        "seconds": {f"pretrain-{arm}-1": 60.0},
    }


@pytest.mark.parametrize(
    ("passages", "queries", "gold", "expected"),
    [
        (0.2, 0.5, 0.6, "reproduced"),
        (0.2, 0.5, 0.2, "reproduced in part"),
        (0.4, 0.6, 0.2, "mixed"),
        (0.4, 0.2, 0.2, "contradicted"),
        (0.4, 0.2, 0.4, "contradicted in part"),
    ],
)
def test_a_verdict_follows_from_the_differences(
    modules: Any, passages: float, queries: float, gold: float, expected: str
) -> None:
    page, claim = modules["page"], modules["claims"].CLAIMS[0]
    noise = np.random.default_rng(1).normal(0, 0.01, 100)
    arms = {"cocondenser-passage": passages, "cocondenser-query": queries, "cocondenser-gold": gold}
    cells = [cell(arm, list(mean + noise * i)) for i, (arm, mean) in enumerate(arms.items())]
    assert page.verdict(page.tests_of(cells), claim) == expected


@pytest.mark.parametrize(
    ("low", "high", "published", "seeds", "labels", "expected"),
    [
        (-0.010, 0.003, 0.4, 3, "1000", "no effect larger than 0.3"),
        (-0.010, -0.001, 0.4, 3, "1000", "no effect larger than 0.0"),
        # The interval is 1.3 points wide: a standard error of .33, and 2.8 of them.
        (-0.003, 0.010, 0.4, 3, "1000", "inconclusive (could show ≥ 0.9 at 80 % power)"),
        (-0.010, 0.003, None, 3, "1000", "inconclusive (could show ≥ 0.9 at 80 % power)"),
        # Intervals are over questions: fewer seeds exclude nothing. What is published is with labels.
        (-0.010, 0.003, 0.4, 2, "1000", "inconclusive (could show ≥ 0.9 at 80 % power)"),
        (-0.010, 0.003, 0.4, 3, "0+whitened", "inconclusive (could show ≥ 0.9 at 80 % power)"),
    ],
)
def test_no_significant_difference_is_a_null_only_if_the_published_one_is_excluded(
    modules: Any, low: float, high: float, published: float | None, seeds: int, labels: str, expected: str
) -> None:
    page, claims = modules["page"], modules["claims"]
    claim = claims.Claim("text", "place", (("a", "b"),), published=published)
    d = Difference((low + high) / 2, low, high, p=0.3, wins=1, losses=1, ties=0)
    assert page.verdict([page.Test(claim, "s", labels, "a", "b", seeds, d, 0.3)], claim) == expected


def test_differences_are_tested_by_documents(modules: Any) -> None:
    """Questions about one document may all say the same: 40 of them are no more than the 4 documents that they are about."""
    page, differences = modules["page"], modules["differences"]
    a, clusters = np.zeros(40), np.repeat(np.arange(4), 10)
    b = np.repeat([0.3, 0.1, 0.2, -0.1], 10)
    by_document = differences.precise(a, b, clusters)
    by_question = differences.precise(a, b, np.arange(40))
    assert (by_document.mean, by_question.mean) == pytest.approx((0.125, 0.125))
    assert by_document.p == 6 / 16, (
        "3 + 1 + 2 - 1, 3 - 1 + 2 + 1 and 3 + 1 + 2 + 1 are at least 5, and reversed"
    )
    assert by_question.p < 0.001
    # Four documents: t of three degrees of freedom, and the standard error of a mean of .3, .1, .2 and -.1.
    error = np.std([0.3, 0.1, 0.2, -0.1], ddof=1) / 2
    assert by_document.high - 0.125 == pytest.approx(3.182446 * error, rel=1e-4)
    ceiling = [cell("cocondenser-passage", [1.0] * 50), cell("cocondenser-query", [0.9] * 50)]
    assert page.tests_of(ceiling) == [], "nothing is above a baseline that has everything"


@pytest.mark.parametrize(
    ("better", "word"),
    [
        ([0.2, 0.3, 0.2], "the candidate is better"),
        ([-0.2, -0.2, -0.3], "the baseline is better"),
        ([0.2, 0.3, -0.2], "open"),
        ([0.2, 0.3], "open"),
    ],
)
def test_a_registered_difference_has_a_verdict_if_three_seeds_agree(
    modules: Any, better: list[float], word: str
) -> None:
    def of(arm: str, mean: float, seed: int) -> dict[str, Any]:
        one = cell(arm, [mean] * 50, seed)
        return {
            **one,
            "scale": "relevance",
            "set": "fairytaleqa",
            "scores": {"0+whitened": one["scores"]["0"]},
        }

    cells = [of("contrastive-lower", 0.5, seed) for seed in range(len(better))]
    cells += [of("contrastive-upper", 0.5 + change, seed) for seed, change in enumerate(better)]
    (row,) = modules["controls"].registered_table(cells, "relevance").rows
    texts = [one.text for one in row.cells]
    assert texts[3] == ", ".join(f"{100 * change:+.1f}" for change in better) and texts[-1] == word


def test_clusters_are_those_of_the_sets(modules: Any) -> None:
    clusters_of = modules["clusters"].clusters_of
    for one in modules["record"].read_cells(HERE / "cells"):
        if one["set"] in modules["study"].POOL:
            count = len(next(iter(one["scores"].values()))["MRR@10"])
            assert len(set(clusters_of(one["set"], count).tolist())) < count, one["set"]
    stories = clusters_of("plain/fairytaleqa", 1_007)
    assert len(stories) == 1_007 and len(set(stories.tolist())) == 23
    assert len(set(clusters_of("titles-all/medquad", 745).tolist())) == 275, "a quarter of its documents"
    assert len(set(clusters_of("depth/joint to squad_pool", 4_961).tolist())) == 24
    assert clusters_of("plain/fairytaleqa to cranfield", 225).tolist() == list(range(225))


def test_a_claim_that_no_cell_can_answer_is_not_tested(modules: Any) -> None:
    """Whatever cells there are: at 150 steps CoT-MAE has learned nothing yet."""
    cells = [cell("cot-mae-passage", [0.1] * 50), cell("cot-mae-query", [0.9] * 50)]
    claims = [c for c in modules["claims"].CLAIMS if "CoT-MAE" in c.text]
    assert claims
    page = modules["page"]
    assert {page.summary(page.tests_of(cells), claim) for claim in claims} == {"not tested"}


def test_arms_are_compared_over_the_seeds_that_both_have(modules: Any) -> None:
    cells = [
        cell("cocondenser-passage", [0.2] * 50),
        cell("cocondenser-query", [0.3] * 50),
        cell("cocondenser-query", [0.9] * 50, seed=2),
    ]
    (test,) = [t for t in modules["page"].tests_of(cells) if t.claim is modules["claims"].CLAIMS[0]]
    assert (test.seeds, test.difference.mean) == (1, pytest.approx(0.1))


def test_learning_curves_begin_at_the_start_and_join_what_several_scales_measured(modules: Any) -> None:
    page, curves = modules["page"], modules["curves"]
    few, many = (
        cell("none", [0.1]) | {"scale": "curve", "set": "s", "scores": scores}
        for scores in (
            {"100": cell("none", [0.3])["scores"]["0"]},
            {"8000": cell("none", [0.5])["scores"]["0"]},
        )
    )
    few["scores"] |= many["scores"]
    plain = [
        cell(arm, [mean]) | {"scale": "plain", "set": "s"} for arm, mean in (("none", 0.1), ("mlm", 0.2))
    ]
    long = cell("mlm-long", [0.4]) | {"scale": "plain", "set": "s"}
    systems = page.systems_of([few, *plain, long])
    assert curves.label_curves(systems) == {
        "labels-s": {"no pre-training": [(0, 0.1), (100, 0.3), (8000, 0.5)]}
    }
    assert curves.step_curves(systems) == {"steps-s": {"MLM": [(0, 0.1), (150, 0.2), (1500, 0.4)]}}
    figures = curves.learning(systems)
    assert set(figures) == {"labels-s", "steps-s"}
    ticks = [text.get_text() for text in figures["steps-s"].axes[0].get_xticklabels()]
    assert ticks == ["0", "150", "1,500"]


def test_without_cells_nothing_is_claimed(modules: Any) -> None:
    page = modules["page"]
    assert {page.verdict([], claim).partition(":")[0] for claim in modules["claims"].CLAIMS} == {"not tested"}


def test_the_committed_pages_hold_the_figures_of_the_cells(modules: Any) -> None:
    page = modules["page"]
    tables = page.tables_of(page.read_cells(HERE / "cells"))
    texts = [(RESULTS / name).read_text("utf-8") for name in page.PAGES]
    assert [page.filled(text, tables) for text in texts] == texts
    prose = re.sub(r"<!-- \w+ -->\n.*?<!-- end -->", "", texts[0], flags=re.DOTALL)
    assert len(prose.split()) <= 1700, "a page that is read in ten minutes, with its tables"


def test_a_row_counts_the_verdicts_of_sets(modules: Any) -> None:
    """In a fixed order; of several that could show little, the weakest. What other scales repeat does not count."""
    page, claim = modules["page"], modules["claims"].Claim("text", "place", (("a", "b"),))

    def test(data: str, low: float, high: float, p: float) -> Any:
        d = Difference((low + high) / 2, low, high, p=p, wins=1, losses=1, ties=0)
        return page.Test(claim, data, "0", "a", "b", 1, d, p)

    wide, narrow = test("plain/medquad", -0.02, 0.024, 0.5), test("plain/squad_pool", -0.01, 0.012, 0.5)
    assert page.summary([wide, narrow], claim) == "inconclusive (≥3.1): 2; +0.1…+0.2"
    found = [wide, test("plain/fairytaleqa", 0.01, 0.02, 0.01), test("curve/fairytaleqa", 0.03, 0.04, 0.01)]
    assert page.summary(found, claim) == "reproduced: 1, inconclusive (≥3.1): 1; +0.2…+1.5"
    assert page.summary([test("curve/fairytaleqa", 0.03, 0.04, 0.01)], claim) == "reproduced: 1; +3.5"
    assert page.summary([], claim) == "not tested"


def test_the_figures_of_the_pages_are_there_and_no_others(modules: Any) -> None:
    texts = "".join(file.read_text("utf-8") for file in RESULTS.glob("*.md"))
    shown = set(re.findall(r"\(figures/(evidence-[\w-]+\.svg)\)", texts))
    assert shown == {file.name for file in (RESULTS / "figures").glob("evidence-*.svg")}
