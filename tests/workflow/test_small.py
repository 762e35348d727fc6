"""The small profile of every recipe that has one runs whole, from passages to scores, with an encoder from nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import WORDS, write_collection

from qontext import api
from qontext.frame.errors import QontextError
from qontext.workflow.recipe import read_recipe
from qontext.workflow.tables import read_tables, shipped

MSMARCO = [
    path.stem for path in shipped() if path.stem.endswith("-msmarco") or path.stem.startswith("msmarco")
]
TINY = {
    "pretrain": {"steps": 2, "batch_size": 4},
    "finetune": {"steps": 2, "batch_size": 4},
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


def run(name: str, data: Path, out: Path, *changes: str) -> dict[str, Any]:
    given = f"inputs.data={data}"
    changes = (given, *changes)
    for step in read_recipe(name, (given,), small=True).steps:
        for key, value in TINY.get(step.stage.verb, {}).items():
            changes += (f"{step.name}.{key}={value}",)
    result: dict[str, Any] = api.run(name, small=True, set=changes, out=str(out))
    return result


@pytest.mark.parametrize("name", MSMARCO)
def test_from_passages_to_scores(name: str, data: Path, out: Path) -> None:
    result = run(name, data, out)
    scores = {row["system"]: row for row in result["scores"]}
    assert {"score-1", "score-2"} <= scores.keys() <= {"score-1", "score-2", "score-3"}, (
        "and nothing published is beside so small a run"
    )
    assert all({"MRR@10", "Success@50", "Success@1000"} <= row.keys() for row in scores.values())


def test_every_recipe_of_a_paper_s_row_has_a_small_profile() -> None:
    for path in shipped():
        if path.stem in MSMARCO:
            recipe = read_recipe(path.stem, ("inputs.data=data",), small=True)
            assert {"start", "score-1", "score-2"} <= {step.name for step in recipe.steps}
            assert not any("dl19" in step.name for step in recipe.steps)


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
