"""`qontext train-reranker`, and the whole way from BM25 to a student."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qontext import api
from qontext.engine.metrics import read
from qontext.errors import QontextError
from qontext.retrieve.cross_encoder import CrossEncoder, encode_pairs, pad_pairs

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


def losses(made: Any) -> list[float]:
    return [line["loss"] for line in read(made.path / "logs/metrics.jsonl") if "loss" in line]


def test_it_learns_and_both_libraries_load_it(train: Train, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    made = train(tmp_path / "out", steps=40)
    course = losses(made)
    assert course[0] == pytest.approx(np.log(4), abs=0.3), "nothing is known at the start"
    assert np.mean(course[-4:]) < 0.6 * course[0]
    pairs = [("chapter 3 river", "Chapter 3 river stone"), ("bread", "the mill " * 40)]
    ours = CrossEncoder(str(made.path), device="cpu").score(pairs)
    model = AutoModelForSequenceClassification.from_pretrained(made.path).eval()
    tokenizer = AutoTokenizer.from_pretrained(made.path)
    with torch.inference_mode():
        theirs = [
            model(**tokenizer(*pair, truncation=True, max_length=40, return_tensors="pt")).logits.item()
            for pair in pairs
        ]
    assert np.abs(ours - theirs).max() < 1e-5


def test_small_micro_batches_train_as_one_large_does(train: Train, tmp_path: Path) -> None:
    one, several = train(tmp_path / "one"), train(tmp_path / "several", micro_tokens=1)
    assert losses(one) == pytest.approx(losses(several), rel=1e-5)


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
        found = Listwise(model)(Lists(inputs, left_out, 0.5, 0)).losses["listwise"].item()
    first = -torch.log(g[0].exp() / g[:3].exp().sum())
    second = -torch.log(g[3].exp() / (g[3].exp() + g[5].exp()))
    assert found == pytest.approx(((first + second) / 2).item(), rel=1e-5)


def test_without_negatives_there_is_nothing_to_rerank(train: Train, beir: Path, tmp_path: Path) -> None:
    with pytest.raises(QontextError, match=r"no query has a negative.*qontext mine"):
        train(tmp_path / "out", groups=beir)
    with pytest.raises(QontextError, match=r"max_length = 999, but the encoder reads 512"):
        train(tmp_path / "out", max_length=999)


def test_two_stages_and_distillation_run_as_one_recipe(beir: Path, start: Path, tmp_path: Path) -> None:
    data = tmp_path / "set"
    (data / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv"):
        (data / name).write_text((beir / name).read_text())
    (data / "qrels/test.tsv").write_text((beir / "qrels/dev.tsv").read_text())
    changes = [f"inputs.data={data}", f"inputs.encoder={start}", "bm25-train.k=20"]
    for name in ("retriever-1", "retriever-2", "student", "reranker"):
        changes += [f"{name}.batch_size=4", f"{name}.steps=2"]
    changes += [f"{name}.passage_length=40" for name in ("retriever-1", "retriever-2", "student")]
    changes += ["reranker.max_length=40"]
    api.run("two-stage", out=str(tmp_path / "out"), set=tuple(changes))
    for name in ("bm25", "retriever-1", "retriever-2", "reranked", "student"):
        assert (tmp_path / "out" / f"score-{name}" / "meta.json").exists(), name


@pytest.mark.parametrize("name", ["msmarco-finetune", "msmarco-finetune-cocondenser", "dpr-finetune"])
def test_published_settings_can_be_read(name: str) -> None:
    from qontext.workflow.recipe import read_recipe

    (step,) = read_recipe(name, ("inputs.groups=g", "inputs.passages=p", "inputs.encoder=e")).steps
    assert step.configure(Path("runs"))
