"""The small profile of every recipe that has one runs whole, from passages to scores, with an encoder from nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import WORDS, write_collection

from qontext import api
from qontext.data.collection import load_collection, read_passages
from qontext.frame.artifacts import open_artifact
from qontext.workflow.recipe import read_recipe
from qontext.workflow.tables import find_recipe, read_arms, shipped

RECIPES = [path.stem for path in shipped()]
SWEEPS = [path.stem for path in shipped("sweeps")]
TINY = {
    "pretrain": {"steps": 2, "batch_size": 4},
    "finetune": {"steps": 2, "batch_size": 4, "passage_length": 32},
    "train-reranker": {"steps": 2, "batch_size": 4, "max_length": 48},
    "rerank": {"max_length": 48},
    "encode": {"max_length": 48},
    "train-generator": {"steps": 2, "batch_size": 4},
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
    """The settings of a run: the labeled set, and fewer steps than in the small profile."""
    settings: tuple[str, ...] = (f"inputs.data={data}",)
    for step in read_recipe(name, settings, small=True, arm=arm).steps:
        if step.settings.get("tokens"):
            continue  # the passages' vectors are stored, with the length of their encoding
        for key, value in TINY.get(step.stage.verb, {}).items():
            settings += (f"{step.name}.{key}={value}",)
    return settings


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
    settings = [set(tiny(name, data, arm)) for arm in arms]
    result = api.run(name, small=True, set=tuple(sorted(set.union(*settings))), out=str(out))
    assert [row["settings"] for row in result["combinations"]] == [{"arm": arm} for arm in arms]
    measured = [{key for key in row["measures"] if "MRR@10" in key} for row in result["combinations"]]
    assert len(arms) > 1 and all(measured), "every arm is measured"
    assert result["published"] == []
    assert (out / "sweep.md").read_text().count("\n| ") > len(arms)


@pytest.fixture(scope="module")
def start(data: Path, out: Path) -> str:
    """A tiny encoder with the vocabulary of the passages."""
    api.run("bert-msmarco", small=True, set=tiny("bert-msmarco", data), out=str(out), until="start")
    return str(out / "start")


def at_full_size(name: str, start: str, out: Path, **inputs: object) -> list[dict[str, Any]]:
    """The scores of a recipe's own profile, in few steps."""
    settings = (f"inputs.encoder={start}", *(f"inputs.{key}={value}" for key, value in inputs.items()))
    for step in read_recipe(name, settings).steps:
        if step.stage.verb == "finetune":
            settings += (
                f"{step.name}.steps=1",
                f"{step.name}.batch_size=2",
                f"{step.name}.passage_length=64",
            )
    scores: list[dict[str, Any]] = api.run(name, set=settings, out=str(out))["scores"]
    return [row for row in scores if not row["system"].startswith("published")]


def test_dpr_s_files_as_published(data: Path, start: str, tmp_path: Path) -> None:
    passages = list(read_passages(data))
    rows = [f"{p.id}\t{p.text}\t{p.title}" for p in passages]
    (tmp_path / "psgs_w100.tsv").write_text("\n".join(["id\ttext\ttitle", *rows]) + "\n")
    first = {p.id: " ".join(p.text.split()[:4]) for p in passages}
    questions = [
        {
            "question": first[p.id], "answers": [first[p.id]],
            "positive_ctxs": [{"passage_id": p.id}], "hard_negative_ctxs": [{"passage_id": other.id}],
        }
        for p, other in zip(passages[:8], passages[8:])
    ]  # fmt: skip
    (tmp_path / "biencoder-nq-train.json").write_text(json.dumps(questions))
    texts = [first[p.id] for p in passages[20:25]]
    (tmp_path / "nq-test.qa.csv").write_text("".join(f"{text}\t['{text}']\n" for text in texts))
    files = {"passages": "psgs_w100.tsv", "train": "biencoder-nq-train.json", "test": "nq-test.qa.csv"}
    inputs = {name: tmp_path / file for name, file in files.items()}
    scores = at_full_size("dpr-finetune", start, tmp_path / "out", **inputs)
    assert [row["system"] for row in scores] == ["score-1", "score-2"]
    assert all(row["Answer@100"] == 100 for row in scores), "of 40 passages, all are found"
    assert (open_artifact(tmp_path / "out" / "retriever-2").path / "query").is_dir()
    settings = tuple(f"inputs.{name}={inputs[name]}" for name in ("passages", "test"))
    words = api.run("bm25-nq", set=settings, out=str(tmp_path / "bm25"))["scores"][0]
    assert words["Answer@100"] == 100 and words["Answer@5"] < 100, "they have the same twelve words"


def test_msmarco_s_documents_as_published(data: Path, start: str, tmp_path: Path) -> None:
    rows = [f"{p.id}\thttp://x/{p.id}\t{p.title}\t{p.text}\n" for p in read_passages(data)]
    (tmp_path / "msmarco-docs.tsv").write_text("".join(rows))
    inputs = {"documents": tmp_path / "msmarco-docs.tsv"}
    collection = load_collection(data)
    for split, suffix in (("train", "_train"), ("dev", "")):
        queries, qrels = collection.queries(split), collection.qrels(split)
        inputs |= {f"{kind}{suffix}": tmp_path / f"{kind}-{split}.tsv" for kind in ("queries", "qrels")}
        (tmp_path / f"queries-{split}.tsv").write_text("".join(f"{q}\t{t}\n" for q, t in queries.items()))
        lines = [f"{query} 0 {passage} 1\n" for query, judged in qrels.items() for passage in judged]
        (tmp_path / f"qrels-{split}.tsv").write_text("".join(lines))
    scores = at_full_size("msmarco-documents-finetune", start, tmp_path / "out", **inputs)
    assert [row["Success@100"] for row in scores] == [100, 100], (
        "documents are found by the ids of the judgments"
    )


def test_published_negatives_and_beir(data: Path, start: str, tmp_path: Path) -> None:
    rows = [
        {"qid": f"q{i}", "pos": [f"p{i}"], "neg": {"bm25": [f"p{i + 20}", f"p{i + 21}"]}} for i in range(15)
    ]
    (tmp_path / "hard.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inputs = {"data": data, "negatives": tmp_path / "hard.jsonl", "set": data}
    folder = (f"inputs.{name}={value}" for name, value in {**inputs, "encoder": start}.items())
    small = (
        "retriever.steps=1",
        "retriever.batch_size=2",
        "retriever.passage_length=64",
        "vectors.max_length=64",
        "search.max_length=64",
        "search.split=dev",
        "score.split=dev",
    )
    result = api.run("beir-finetune", set=(*folder, *small), out=str(tmp_path / "out"))
    assert [row["system"] for row in result["scores"]] == ["score"]


def test_the_directory_of_a_small_run_is_its_own(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"set": (f"inputs.data={data}",), "small": True, "dry_run": True}
    assert Path(api.run("mlm-msmarco", **settings)["out"]) == Path("runs/mlm-msmarco-small")
