"""The grid: variants shared where nothing differs, resumed, and tabled."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from qontext import api
from qontext.cli import app
from qontext.frame.errors import QontextError
from qontext.workflow.ablation import ArmScores, ablation_table, arms_of, compare_arms
from qontext.workflow.recipe import read_recipe
from qontext.workflow.sweep import expand, parse_axis

RECIPE = """
[recipe]
title = "BM25 by its settings"
[inputs]
data = ""
depth = 20
[search]
verb = "retrieve"
data = "$data"
bm25 = true
k = "$depth"
[evaluate]
run = "@search"
qrels = "$data"
measures = "MRR@10"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    texts = {"a": "the cat sat on the mat and slept", "b": "cat", "c": "dogs bark"}
    (data / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in texts.items())
    )
    (data / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "cat sat"}) + "\n")
    (tmp_path / "r.toml").write_text(RECIPE.replace('data = ""', f"data = {json.dumps(str(data))}", 1))
    return str(tmp_path / "r.toml")


def test_what_combinations_share_is_one_step(recipe: str) -> None:
    axes = [parse_axis("search.k1=0.5,0.9"), parse_axis("evaluate.relevant=1,2")]
    sweep = expand(recipe, (), axes)
    names = [step.name for step in sweep.recipe.steps]
    assert names == [
        "search--k1=0.5",
        "evaluate--k1=0.5--relevant=1",
        "evaluate--k1=0.5--relevant=2",
        "search--k1=0.9",
        "evaluate--k1=0.9--relevant=1",
        "evaluate--k1=0.9--relevant=2",
    ]
    assert sweep.recipe.steps[2].settings["run"] == "@search--k1=0.5"
    assert len(sweep.labels) == 4


def test_inputs_can_be_swept_and_fields_of_one_name_stay_apart(recipe: str) -> None:
    sweep = expand(recipe, (), [parse_axis("inputs.depth=5,10")])
    assert [step.name for step in sweep.recipe.steps][:2] == ["search--depth=5", "evaluate--depth=5"]
    same = [parse_axis("search.split=test,dev"), parse_axis("evaluate.split=test,dev")]
    names = [step.name for step in expand(recipe, (), same).recipe.steps]
    assert names[:2] == ["search--search.split=test", "evaluate--search.split=test--evaluate.split=test"]


def test_the_expanded_recipe_reads_back(recipe: str) -> None:
    expanded = expand(recipe, (), [parse_axis("search.k1=0.5,0.9")]).recipe
    assert list(tomllib.loads(expanded.dump())) == ["recipe", *(step.name for step in expanded.steps)]


def test_runs_resumes_and_makes_the_table(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ("search.b=0,1",)
    first = api.run(recipe, grid=grid, out=tmp_path / "out")
    values = [row["measures"]["MRR@10"] for row in first["combinations"]]
    # However much its length counts against it, the passage with both words wins.
    assert values == [1, 1]
    assert [row["settings"]["search.b"] for row in first["combinations"]] == ["0", "1"]
    assert first["comparisons"] == [
        {"settings": {"search.b": "1"}, "measure": "MRR@10", "queries": 1}
        | {"difference": 0.0, "low": 0.0, "high": 0.0, "p": 1.0}
    ]
    assert "| 1 | 1.0000 | 1 | +0.0000 | 1 |" in (tmp_path / "out" / "sweep.md").read_text()
    capsys.readouterr()
    again = api.run(recipe, grid=grid, out=tmp_path / "out")
    assert again["comparisons"] == first["comparisons"]
    assert capsys.readouterr().err.count("already done") == 4
    kept = read_recipe(str(tmp_path / "out" / "recipe.toml"))
    assert len(kept.steps) == 4


def scored(values: list[float]) -> ArmScores:
    return ArmScores({"m": np.array(values)}, [f"q{i}" for i in range(len(values))])


def test_seeds_are_averaged_and_arms_tested() -> None:
    cells = {
        (f"a.x={x}", f"a.seed={s}"): scored([x + s + i / 100 for i in range(10)])
        for x in (1, 2)
        for s in (0, 2)
    }
    arms = arms_of(cells)
    comparisons = compare_arms({"": arms})
    table = ablation_table(["a.x", "a.seed"], "", arms, comparisons)
    assert list(table.columns) == ["a.x", "m", "n", "difference", "p"]
    assert [cell.text for cell in table.rows[0].cells] == ["1", "2.0450 ± 1.4142", "10", "–", "–"]
    assert [cell.text for cell in table.rows[1].cells] == ["2", "3.0450 ± 1.4142", "10", "+1.0000", ".002"]
    assert [row.cells[1].is_best for row in table.rows] == [False, True]
    assert [(row.arm, row.queries) for row in comparisons] == [(("a.x=2",), 10)]


def test_p_is_corrected_over_the_arms() -> None:
    cells = {(f"a.x={x}",): scored([x * 1.0] * 6) for x in (1, 2, 3)}
    # Of six queries that all gain, 2 of 64 sign patterns are as extreme; two arms double that.
    assert [row.p for row in compare_arms({"": arms_of(cells)})] == [pytest.approx(2 * 2 / 64)] * 2


@pytest.mark.parametrize(
    ("values", "best"),
    [([0.1, 0.2], 1), ([0.2, 0.1], 0), ([0.1, 0.1], None)],
)
def test_only_what_is_significant_is_best(values: list[float], best: int | None) -> None:
    arms = arms_of({(f"a.x={i}",): scored([value] * 10) for i, value in enumerate(values)})
    table = ablation_table(["a.x"], "", arms, compare_arms({"": arms}))
    assert [i for i, row in enumerate(table.rows) if row.cells[1].is_best] == ([] if best is None else [best])


def test_every_arm_is_checked_before_the_first_step(recipe: str, tmp_path: Path) -> None:
    with pytest.raises(QontextError, match=r"3 problems: .*b = 2.*; .*k = 0") as error:
        api.run(recipe, grid=("search.k=5,0", "search.b=1,2"), out=tmp_path / "out")
    assert str(error.value).startswith(recipe)
    assert not (tmp_path / "out").exists()


def test_from_the_command_line(recipe: str, tmp_path: Path) -> None:
    arguments = ["run", recipe, "--grid", "search.b=0,1", "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["out"] == str(tmp_path / "out")
