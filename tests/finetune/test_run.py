"""`qontext finetune` as a user runs it: cached, on two ranks, killed and resumed, stopped early, misused."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.tiny import Server

from qontext.models.retriever import Retriever
from qontext.training.metrics import read

Finetune = Callable[..., Any]


# How closely the losses of two ways to compute one training agree: they round at different places.
CLOSE = {"fp32": 1e-4, "bf16": 1e-3}


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read(folder / "logs/metrics.jsonl") if "loss" in line]


def apart(one: Path, other: Path) -> float:
    """The largest difference between two encoders' weights."""
    a, b = (load_file(path / "model.safetensors") for path in (one, other))
    return max((a[name] - b[name]).abs().max().item() for name in a)


@pytest.mark.parametrize("precision", CLOSE)
def test_it_learns_and_the_cache_gives_the_plain_gradient_with_dropout_on(
    finetune: Finetune, tmp_path: Path, precision: str
) -> None:
    settings = {"micro_tokens": 60, "dropout": 0.1, "temperature": 20.0, "precision": precision}
    plain = finetune(tmp_path / "plain", gradient_cache="off", **settings)
    cached = finetune(tmp_path / "cached", gradient_cache="on", **settings)
    assert losses(plain.path) == pytest.approx(losses(cached.path), rel=CLOSE[precision])
    if precision == "fp32":
        assert apart(plain.path, cached.path) < 1e-4
    assert plain.meta["computed"] == precision
    assert plain.summary["queries_filled_with_random_passages"] == 1
    long = finetune(tmp_path / "long", steps=30, precision=precision)
    assert np.mean(losses(long.path)[-3:]) < np.mean(losses(long.path)[:3]) / 2


def test_the_retriever_gives_the_same_vectors_in_other_libraries(finetune: Finetune, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    texts = ["river stone bridge", "Chapter 3 the bread of the mill and a much longer oven", "a"]
    for pooling, similarity in (("cls", "dot"), ("mean", "cosine")):
        out = tmp_path / pooling
        retriever = finetune(out, pooling=pooling, similarity=similarity, steps=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            theirs = sentence_transformers.SentenceTransformer(str(retriever.path), device="cpu")
        assert theirs.similarity_fn_name == similarity
        ours = Retriever(str(out), device="cpu", precision="fp32").encode(texts, "passage")
        assert np.abs(theirs.encode(texts) - ours).max() < 1e-5
        assert (np.abs(np.linalg.norm(ours, axis=1) - 1) < 1e-5).all() == (similarity == "cosine")
    # What is trained further goes on as it was saved.
    again = finetune(tmp_path / "again", encoder=str(out), steps=1)
    assert (again.summary["pooling"], again.summary["similarity"]) == ("mean", "cosine")


def command(groups: Path, beir: Path, start: Path, out: Path, *more: str) -> list[str]:
    return [
        "finetune", str(groups), "--passages", str(beir), "--encoder", str(start),
        "--batch-size", "4", "--passages-per-query", "4", "--query-length", "12", "--passage-length", "24",
        "--lr", "1e-3", "--steps", "12", "--log-every", "1", "--checkpoint-minutes", "0", "--device", "cpu",
        "--micro-tokens", "80", "--out", str(out), "-q", *more,
    ]  # fmt: skip


@pytest.mark.parametrize("precision", CLOSE)
def test_two_processes_and_small_micro_batches_train_the_encoder_of_one_with_dropout_on(
    finetune: Finetune, groups: Path, beir: Path, start: Path, tmp_path: Path, precision: str, warm: Server
) -> None:
    settings = {"steps": 4, "temperature": 20.0, "dev": str(beir), "keep": "last", "lr": 1e-4}
    settings |= {"dropout": 0.1, "precision": precision}
    alone, two = finetune(tmp_path / "alone", **settings).path, tmp_path / "two"
    more = ("--steps", "4", "--temperature", "20", "--dev", str(beir), "--keep", "last", "--lr", "1e-4")
    more += ("--dropout", "0.1", "--precision", precision)
    warm.run(command(groups, beir, start, two, *more), tmp_path / "said", ranks=2)
    assert losses(alone) == pytest.approx(losses(two), rel=CLOSE[precision])
    if precision == "fp32":
        assert apart(alone, two) < 2e-5


def test_the_best_weights_are_kept_and_patience_ends_the_run(
    finetune: Finetune, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qontext.training.evaluation import Probe

    course = iter([0.1, 0.5, 0.3, 0.5, 0.2, 0.9])

    def measured(self: Any, model: Any, *vectors: Any) -> dict[str, float]:
        return {"MRR@10": next(course), "R@100": 1.0}

    monkeypatch.setattr(Probe, "measure", measured)
    dev = {"dev": str(beir), "dev_every": 2, "steps": 20, "schedule": "constant"}
    retriever = finetune(tmp_path / "stopped", patience=3, **dev)
    # The first measurement precedes the training: 0.5 at step 2 is best, then three are no better.
    assert retriever.summary["dev"] == {
        "kept": "best",
        "step": 2,
        "MRR@10": 0.5,
        "R@100": 1.0,
        "best_step": 2,
        "stopped_at": 8,
    }
    monkeypatch.undo()
    short = finetune(tmp_path / "short", steps=2, schedule="constant", warmup=0.1 * 20 / 2)
    assert apart(retriever.path, short.path) < 1e-6


@pytest.mark.numeric
@pytest.mark.parametrize("loss", ["kl", "margin-mse", "rank"])
def test_a_student_comes_closer_to_its_teacher(
    finetune: Finetune, scores: Path, tmp_path: Path, loss: str
) -> None:
    retriever = finetune(tmp_path / "out", teacher=str(scores), loss=loss, steps=30, temperature=10.0)
    course = losses(retriever.path)
    assert np.mean(course[-3:]) < np.mean(course[:3]) / 2
    assert loss in (retriever.path / "README.md").read_text()


@pytest.mark.numeric
def test_a_student_of_short_vectors_in_batches_of_similar_queries(
    finetune: Finetune, scores: Path, tmp_path: Path
) -> None:
    """TAS-B's batches and margins, and Matryoshka, together."""
    settings = {"clusters": 3, "margin_bins": 2, "dimensions": (8, 32), "passages_per_query": 2}
    settings |= {"temperature": 10.0}
    retriever = finetune(tmp_path / "out", teacher=str(scores), loss="margin-mse", steps=30, **settings)
    lines = [line["losses"] for line in read(retriever.path / "logs/metrics.jsonl") if "losses" in line]
    assert lines[0].keys() == {"margin_mse"}
    # Its loss is another in each batch of similar queries, too much so to fall within thirty steps.
    assert len(lines) == 30 and np.isfinite([list(line.values()) for line in lines]).all()
    assert len({line["margin_mse"] for line in lines}) == 30
    assert not (retriever.path / "cache").exists()


@pytest.mark.numeric
def test_a_labeled_folder_is_trained_on_without_hard_negatives(
    finetune: Finetune, beir: Path, tmp_path: Path
) -> None:
    retriever = finetune(tmp_path / "out", beir, passages=None, dev=str(beir))
    assert retriever.summary["queries"] == 14 and retriever.summary["passages_per_query"] == 1
    assert 0 <= retriever.summary["dev_before"]["MRR@10"] <= retriever.summary["dev"]["R@100"] == 1.0


def test_vectors_in_training_are_those_after_it(finetune: Finetune, start: Path) -> None:
    """What the loss sees is what the saved folder gives."""
    from qontext.finetune.batches import Texts
    from qontext.finetune.bi_encoder import BiEncoder
    from qontext.models.encoder import load_encoder
    from qontext.models.representations.vector import Vector
    from qontext.training.texts import tokenize

    encoder = load_encoder(str(start))
    texts = ["river stone", "bread of the mill " * 30]
    tokens = tokenize(enumerate(texts), 2, encoder.tokenizer, 24)
    ids, mask = tokens.pad(np.arange(2), encoder.tokenizer.pad_token_id)
    with torch.inference_mode():
        rows = Texts(ids, mask, row_keys=np.zeros(len(ids), np.uint64))
        ours = BiEncoder(encoder, Vector("mean", "dot")).represent(rows).numpy()
        cosine = BiEncoder(encoder, Vector("mean", "cosine")).represent(rows).numpy()
    retriever = Retriever(str(start), device="cpu", precision="fp32", pooling="mean", max_length=24)
    theirs = retriever.encode(texts, "passage")
    assert np.abs(ours - theirs).max() < 1e-5
    assert np.abs(cosine - theirs / np.linalg.norm(theirs, axis=1, keepdims=True)).max() < 1e-5


def test_an_untied_pair_trains_both_halves_and_each_encodes_its_kind(
    finetune: Finetune,
    groups: Path,
    beir: Path,
    start: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from qontext import api

    settings = {"untied": True, "similarity": "cosine", "pooling": "mean", "dropout": 0.1, "micro_tokens": 80}
    settings |= {"precision": "fp32"}
    pair = finetune(tmp_path / "pair", gradient_cache="on", dev=str(beir), keep="last", **settings).path
    assert apart(pair, pair / "query") > 1e-3 < apart(pair, start), "each half learns"
    tied = finetune(tmp_path / "tied", **{**settings, "untied": False}).path
    assert apart(pair, tied) > 1e-4
    plain = finetune(tmp_path / "plain", gradient_cache="off", **settings).path
    assert apart(pair, plain) < 1e-4 > apart(pair / "query", plain / "query")

    # Each kind of text goes to its half, in both libraries and in every verb.
    retriever, half = Retriever(str(pair), device="cpu"), Retriever(str(pair / "query"), device="cpu")
    texts = ["river stone bridge", "bread"]
    assert (retriever.encode(texts, "query") == half.encode(texts, "passage")).all()
    assert np.abs(retriever.encode(texts, "passage") - half.encode(texts, "passage")).max() > 1e-3
    queries = api.encode(beir, kind="query", encoder=str(pair), out=tmp_path / "queries")
    vectors = api.encode(beir, encoder=str(pair), out=tmp_path / "vectors")
    run = api.retrieve(vectors, data=beir, split="dev", k=5, out=tmp_path / "run")
    same = api.retrieve(
        vectors, data=beir, split="dev", k=5, encoder=str(pair / "query"), untied=True, out=tmp_path / "same"
    )
    assert (run.path / "run.trec").read_bytes() == (same.path / "run.trec").read_bytes()
    assert queries.summary["texts"] == 20

    # Training goes on from both halves; tied, the second half is left aside and that is said.
    again = finetune(tmp_path / "again", encoder=str(pair), steps=1, lr=1e-9, **{**settings, "dropout": 0.0})
    assert apart(again.path / "query", pair / "query") < 1e-6 > apart(again.path, pair)
    capsys.readouterr()
    finetune(tmp_path / "one", encoder=str(pair), steps=1)
    assert "--untied trains both" in " ".join(capsys.readouterr().err.split())


def test_a_folder_whose_texts_are_in_lower_case_trains_one_that_reads_them_so(
    finetune: Finetune, start: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(start, tmp_path / "start")
    for name, lowers in (("tokenizer_config.json", False), ("sentence_bert_config.json", True)):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(settings | {"do_lower_case": lowers}))
    texts = ["RIVER Stone", "river stone"]
    made = finetune(tmp_path / "out", encoder=str(folder), steps=1)
    upper, lower = Retriever(made.path, device="cpu", precision="fp32").encode(texts, "passage")
    assert (upper == lower).all()
