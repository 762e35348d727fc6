"""A sweep of named arms: each is a recipe with its own changes, from the same or another start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qontext import api
from qontext.frame.artifacts import open_artifact
from qontext.workflow.sweep import axes_of, expand
from qontext.workflow.tables import find_recipe, read_arms

BASE = """
[inputs]
data = ""
[search]
verb = "retrieve"
data = "$data"
bm25 = true
[evaluate]
run = "@search"
qrels = "$data"
measures = "MRR@10"
"""
SWEEP = """
[recipe]
extends = "base.toml"
title = "BM25 by its settings"

[search]
verb = "retrieve"
k = 2

[sweep."no length, saturated"]
search.b = 0.0
search.k1 = 0.0

[sweep."no length"]
search.b = 0.0
search.k1 = 9.0

[sweep."the same"]
search.b = 0.0
search.k1 = 9.0
evaluate.relevant = 1

[sweep."judged twice"]
recipe.extends = "again.toml"
recipe.title = "ignored"
search.b = 0.0
search.k1 = 8.0

[small]
recipe.arms = ["no length", "judged twice"]
search.k = 1
"""
AGAIN = """
[recipe]
extends = "base.toml"
[again]
verb = "evaluate"
run = "@search"
qrels = "$data"
"""


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\nr\tc\t1\n")
    texts = {"a": "cat cat cat cat cat cat", "b": "cat sat mat", "c": "dogs bark", "d": "a mat"}
    (data / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in texts.items())
    )
    (data / "queries.jsonl").write_text('{"_id": "q", "text": "cat sat"}\n{"_id": "r", "text": "dogs"}\n')
    (tmp_path / "base.toml").write_text(BASE.replace('data = ""', f"data = {json.dumps(str(data))}", 1))
    (tmp_path / "again.toml").write_text(AGAIN)
    (tmp_path / "s.toml").write_text(SWEEP)
    return str(tmp_path / "s.toml")


def steps(recipe: str, grid: tuple[str, ...] = (), *, small: bool = False) -> list[str]:
    axes = axes_of(read_arms(find_recipe(recipe), small=small), grid)
    return [step.name for step in expand(recipe, (), axes, small=small).recipe.steps]


def test_arms_share_what_is_the_same(sweep: str) -> None:
    assert steps(sweep) == [
        "search--arm=no-length-saturated",
        "evaluate--arm=no-length-saturated",
        "search--arm=no-length",
        "evaluate--arm=no-length",
        "evaluate--arm=the-same",  # its search is that of the arm before
        "search--arm=judged-twice",
        "evaluate--arm=judged-twice",
        "again",
    ]
    assert len(steps(sweep, small=True)) == 5


def test_arms_and_a_grid(sweep: str) -> None:
    expanded = steps(sweep, small=True, grid=("search.b=0.5,1",))
    assert "search--arm=no-length--b=0.5" in expanded and "again--b=1" in expanded


def test_a_table_and_the_first_passages_side_by_side(sweep: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = api.run(sweep, out=out)
    rows = {row["settings"]["arm"]: row["measures"] for row in result["combinations"]}
    assert list(rows) == ["no length, saturated", "no length", "the same", "judged twice"]
    # Saturated, "cat" counts once: b wins. With k1 = 9, six cats outweigh "sat".
    assert (rows["no length, saturated"]["evaluate: MRR@10"], rows["no length"]["evaluate: MRR@10"]) == (
        0.75,
        1,
    )
    assert open_artifact(out / "search--arm=no-length").config["k"] == 2
    assert {"evaluate: MRR@10", "again: MAP"} <= rows["judged twice"].keys(), "named after the steps"
    first, _, second = (out / "sweep.md").read_text().partition("**Sweep, again**")
    assert "| arm | MRR@10 | n | difference | p |" in first and first.count("| 2 |") == 4
    assert "| arm | MRR@10 | nDCG@10 |" in second and second.count("| judged twice |") == 1


def test_a_sweep_is_shown(sweep: str) -> None:
    shown = api.recipes(sweep)
    assert list(shown["arms"]) == [
        "no length, saturated",
        "no length",
        "the same",
        "judged twice",
    ]
    assert shown["needs"] == [] and "k1 = 0.0" in shown["recipe"]
