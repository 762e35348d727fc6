"""The grid: variants shared where nothing differs, resumed, and tabled."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qontext import api
from qontext.cli import app
from qontext.errors import QontextError
from qontext.evaluate.sweep import ablation_table, expand, parse_axis
from qontext.workflow.recipe import read_recipe

RECIPE = """
[recipe]
title = "BM25 by its settings"
[inputs]
data = ""
depth = 20
[search]
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
    made = expand(recipe, (), [parse_axis("search.k1=0.5,0.9")]).recipe
    assert list(tomllib.loads(made.dump())) == ["recipe", *(step.name for step in made.steps)]


def test_runs_resumes_and_makes_the_table(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ("search.b=0,1",)
    first = api.sweep(recipe, grid=grid, out=tmp_path / "out")
    values = [row["measures"]["MRR@10"] for row in first["combinations"]]
    # However much its length counts against it, the passage with both words wins.
    assert values == [1, 1]
    assert [row["search.b"] for row in first["combinations"]] == ["0", "1"]
    with (tmp_path / "out" / "sweep.csv").open() as file:
        assert list(csv.reader(file)) == [["search.b", "MRR@10"], ["0", "1.0"], ["1", "1.0"]]
    assert r"\textbf{1.0000}" in (tmp_path / "out" / "sweep.tex").read_text()
    capsys.readouterr()
    assert api.sweep(recipe, grid=grid, out=tmp_path / "out") == first
    assert capsys.readouterr().err.count("already done") == 4
    again = read_recipe(str(tmp_path / "out" / "recipe.toml"))
    assert len(again.steps) == 4


def test_seeds_are_averaged() -> None:
    cells = [((f"a.x={x}", f"a.seed={s}"), {"m": x + s}) for x in (1, 2) for s in (0, 2)]
    table = ablation_table(["a.x", "a.seed"], cells)
    assert list(table.columns) == ["a.x", "m"]
    assert [cell.text for cell in table.rows[1].cells] == ["2", "3.0000 ± 1.4142"]
    assert [row.cells[1].is_best for row in table.rows] == [False, True]


def test_dry_run_does_nothing(recipe: str, tmp_path: Path) -> None:
    planned = api.sweep(recipe, grid=("search.b=0,1",), out=tmp_path / "out", dry_run=True)
    assert [row["state"] for row in planned["steps"]] == ["will run"] * 4
    assert not (tmp_path / "out").exists()


def test_from_the_command_line(recipe: str, tmp_path: Path) -> None:
    arguments = ["sweep", recipe, "--grid", "search.b=0,1", "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["out"] == str(tmp_path / "out")


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ("search.k1", "cannot read the setting"),
        ("k1=1,2", "cannot read the setting"),
        ("search.k1=", "different values"),
        ("search.k1=1,1", "different values"),
        ("serch.k1=1,2", "Did you mean 'search'"),
        ("search.kk=1,2", "unknown setting"),
    ],
)
def test_a_grid_that_cannot_be_is_told(recipe: str, tmp_path: Path, grid: str, said: str) -> None:
    with pytest.raises(QontextError, match=said):
        api.sweep(recipe, grid=(grid,), out=tmp_path / "out")
