"""`qontext train-reranker`, and the whole way from BM25 to a student."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.tiny import Server

from qontext import api
from qontext.frame.artifacts import open_artifact
from qontext.models.cross_encoder import CrossEncoder, encode_pairs, pad_pairs
from qontext.training.metrics import read

Train = Callable[..., Any]


@pytest.fixture
def train(beir: Path, groups: Path, start: Path) -> Train:
    def call(out: Path, **settings: Any) -> Any:
        base = {
            "passages": str(beir), "encoder": str(start), "batch_size": 4, "candidates": 4, "max_length": 40,
            "lr": 1e-3, "log_every": 1, "device": "cpu", "steps": 3,
        }  # fmt: skip
        return api.train_reranker(settings.pop("groups", groups), out=out, **{**base, **settings})

    return call


def command(groups: Path, beir: Path, start: Path, out: Path, *more: str) -> list[str]:
    return [
        "train-reranker", str(groups), "--passages", str(beir),
        "--encoder", str(start), "--batch-size", "4", "--candidates", "4", "--max-length", "40", "--lr", "1e-3",
        "--log-every", "1", "--checkpoint-minutes", "0", "--device", "cpu", "--out", str(out), "-q", *more,
    ]  # fmt: skip


def apart(one: Path, other: Path) -> float:
    """The largest difference between two rerankers' weights.

    The last bias does not count: it shifts all candidates alike, so its gradient is nothing but rounding.
    """
    a, b = (load_file(path / "model.safetensors") for path in (one, other))
    return max((a[name] - b[name]).abs().max().item() for name in a if name != "classifier.bias")


def losses(reranker: Any) -> list[float]:
    return [line["loss"] for line in read(reranker.path / "logs/metrics.jsonl") if "loss" in line]


@pytest.mark.numeric
def test_it_learns_and_both_libraries_load_it(train: Train, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    reranker = train(tmp_path / "out", steps=40)
    course = losses(reranker)
    assert course[0] == pytest.approx(np.log(4), abs=0.3), "nothing is known at the start"
    assert np.mean(course[-4:]) < 0.6 * course[0]
    pairs = [("chapter 3 river", "Chapter 3 river stone"), ("bread", "the mill " * 40)]
    ours = CrossEncoder(str(reranker.path), device="cpu", precision="fp32").score(pairs)
    model = AutoModelForSequenceClassification.from_pretrained(reranker.path).eval()
    tokenizer = AutoTokenizer.from_pretrained(reranker.path)
    with torch.inference_mode():
        theirs = [
            model(**tokenizer(*pair, truncation=True, max_length=40, return_tensors="pt")).logits.item()
            for pair in pairs
        ]
    assert np.abs(ours - theirs).max() < 1e-5


def test_two_processes_train_the_reranker_of_one(
    train: Train, groups: Path, beir: Path, start: Path, tmp_path: Path, warm: Server
) -> None:
    settings = {"lr": 1e-4, "dropout": 0.1, "precision": "fp32"}
    alone, two = train(tmp_path / "alone", **settings), tmp_path / "two"
    more = ("--steps", "3", "--lr", "1e-4", "--dropout", "0.1", "--precision", "fp32")
    warm.run(command(groups, beir, start, two, *more), tmp_path / "said", ranks=2)
    assert losses(alone) == pytest.approx(losses(open_artifact(two)), rel=1e-5)
    assert apart(alone.path, two) < 2e-5


def test_the_loss_is_the_cross_entropy_of_each_list(start: Path) -> None:
    from qontext.finetune.listwise import Lists, Listwise, load_classifier

    model, tokenizer, _ = load_classifier(str(start), 1, 0.0)
    pairs = [
        ("river", "stone"),
        ("river", "water"),
        ("river", "boat"),
        ("oven", "bread"),
        ("oven", "leaf"),
        ("oven", "sail"),
    ]
    inputs = pad_pairs(tokenizer, encode_pairs(tokenizer, pairs, 16))
    left_out = torch.tensor([[False, False, False], [False, True, False]])
    with torch.no_grad():
        g = model(**inputs).logits.flatten().double()
        value = (
            Listwise(model)(Lists(inputs, left_out, 0.5, row_keys=np.zeros(6, np.uint64)))
            .losses["listwise"]
            .item()
        )
    first = -torch.log(g[0].exp() / g[:3].exp().sum())
    second = -torch.log(g[3].exp() / (g[3].exp() + g[5].exp()))
    assert value == pytest.approx(((first + second) / 2).item(), rel=1e-5)


@pytest.mark.numeric
def test_two_stages_and_distillation_run_as_one_recipe(beir: Path, start: Path, tmp_path: Path) -> None:
    changes = [f"inputs.data={beir}", f"inputs.encoder={start}", "inputs.limit=10", "reranked.k=3"]
    for name in ("retriever-1", "retriever-2", "student", "reranker"):
        changes += [f"{name}.batch_size=4", f"{name}.steps=2"]
    changes += [f"{name}.passage_length=40" for name in ("retriever-1", "retriever-2", "student")]
    changes += ["reranker.max_length=40"]
    api.run("two-stage", out=str(tmp_path / "out"), set=tuple(changes))
    scores = {}
    for name in ("bm25", "retriever-1", "retriever-2", "hybrid", "reranked", "student"):
        evaluation = open_artifact(tmp_path / "out" / f"score-{name}")
        scores[name] = evaluation.summary["measures"]
        assert scores[name].keys() == {"MRR@10", "R@50", "R@100"}, name
    assert scores["reranked"]["R@50"] == scores["retriever-2"]["R@50"], (
        "the rest follows the reranked results"
    )
    assert open_artifact(tmp_path / "out" / "groups-1").summary["queries"] == 10


def test_the_reciprocal_rank_of_a_positive_counts_equal_scores_against_it() -> None:
    from types import SimpleNamespace

    from qontext.finetune.listwise import Lists, mean_reciprocal_rank

    logits = [[3.0, 1.0, 2.0], [1.0, 1.0, 0.0], [0.0, 2.0, -torch.inf]]
    rows = Lists({}, torch.zeros(1, 3), 1.0, row_keys=np.zeros(1, np.uint64))
    scores = iter(logits)
    model: Any = SimpleNamespace(
        training=False,
        eval=lambda: None,
        train=lambda mode: None,
        logits=lambda rows: torch.tensor([next(scores)]),
    )
    plan: Any = SimpleNamespace(lists=lambda step: [rows])
    mean = mean_reciprocal_rank(model, plan, 3, torch.device("cpu"))
    assert mean == pytest.approx((1 + 1 / 2 + 1 / 2) / 3, abs=1e-4)
