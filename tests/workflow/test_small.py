"""The small profile of every recipe that has one runs whole, from passages to scores, with an encoder from nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.tiny import WORDS, write_collection

from qontext import api
from qontext.frame.errors import QontextError
from qontext.workflow.recipe import read_recipe
from qontext.workflow.tables import find_recipe, read_arms, read_tables, shipped, shipped_sweeps

RECIPES = [path.stem for path in shipped()]
SWEEPS = [path.stem for path in shipped_sweeps()]
TINY = {
    "pretrain": {"steps": 2, "batch_size": 4},
    "finetune": {"steps": 2, "batch_size": 4},
    "train-reranker": {"steps": 2, "batch_size": 4},
    "train-tokenizer": {"vocabulary": 300},
}
"""Verb → settings that are smaller still."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty passages that are long enough for several spans, and queries of two splits."""
    dice = random.Random(0)

    def text() -> str:
        return " ".join(" ".join(dice.choices(WORDS, k=8)).capitalize() + "." for _ in range(14))

    passages = [{"_id": f"p{i}", "title": f"Chapter {i}", "text": text()} for i in range(40)]
    queries = [{"_id": f"q{i}", "text": f"chapter {i} {WORDS[i % 12]}"} for i in range(20)]
    qrels = {
        name: {f"q{i}": f"p{i}" for i in numbers}
        for name, numbers in (("train", range(15)), ("dev", range(15, 20)))
    }
    return write_collection(tmp_path_factory.mktemp("small") / "data", passages, queries, qrels)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all recipes: what they share is done once."""
    return tmp_path_factory.mktemp("small-runs") / "out"


def tiny(name: str, data: Path, arm: str | None = None) -> tuple[str, ...]:
    """The settings of a run: the labelled set, and fewer steps than in the small profile."""
    given: tuple[str, ...] = (f"inputs.data={data}",)
    for step in read_recipe(name, given, small=True, arm=arm).steps:
        for key, value in TINY.get(step.stage.verb, {}).items():
            given += (f"{step.name}.{key}={value}",)
    return given


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_whole_and_ends_with_scores(name: str, data: Path, out: Path) -> None:
    result = api.run(name, small=True, set=tiny(name, data), out=str(out))
    assert result["scores"] and not any(row["system"].startswith("published") for row in result["scores"])
    for row in result["scores"]:
        measured = {key: value for key, value in row.items() if "@" in key}
        assert measured and all(0 <= value <= 100 for value in measured.values())


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_runs_whole_and_ends_with_a_table(name: str, data: Path, out: Path) -> None:
    arms = read_arms(find_recipe(name), small=True)
    given = [set(tiny(name, data, arm)) for arm in arms]
    result = api.sweep(name, small=True, set=tuple(sorted(set.union(*given))), out=str(out))
    assert [row["settings"] for row in result["combinations"]] == [{"arm": arm} for arm in arms]
    measured = [{key for key in row["measures"] if "MRR@10" in key} for row in result["combinations"]]
    assert len(arms) > 1 and all(measured), "every arm is measured"
    assert result["published"] == []
    assert (out / "sweep.md").read_text().count("\n| ") > len(arms)


def test_a_recipe_without_a_small_profile(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('[split]\nsource = "docs.jsonl"\n')
    with pytest.raises(QontextError, match="has no small profile"):
        read_tables(tmp_path / "r.toml", small=True)


def test_the_directory_of_a_small_run_is_its_own(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = {"set": (f"inputs.data={data}",), "small": True, "dry_run": True}
    assert Path(api.run("mlm-msmarco", **asked)["out"]) == Path("runs/mlm-msmarco-small")
