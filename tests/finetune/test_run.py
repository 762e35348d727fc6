"""`qontext finetune` as a user runs it: cached, on two ranks, killed and resumed, stopped early, misused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from qontext.engine.metrics import read
from qontext.errors import QontextError
from qontext.retrieve.retriever import Retriever

Finetune = Callable[..., Any]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def losses(made: Path) -> list[float]:
    return [line["loss"] for line in read(made / "logs/metrics.jsonl") if "loss" in line]


def apart(one: Path, other: Path) -> float:
    """The largest difference between two encoders' weights."""
    a, b = (load_file(path / "model.safetensors") for path in (one, other))
    return max((a[name] - b[name]).abs().max().item() for name in a)


def test_it_learns_and_the_cache_gives_the_plain_gradient_with_dropout_on(
    finetune: Finetune, tmp_path: Path
) -> None:
    settings = {"micro_tokens": 60, "dropout": 0.1, "temperature": 20.0}
    plain = finetune(tmp_path / "plain", gradient_cache="off", **settings)
    cached = finetune(tmp_path / "cached", gradient_cache="on", **settings)
    assert losses(plain.path) == pytest.approx(losses(cached.path), rel=1e-4)
    assert apart(plain.path, cached.path) < 1e-4
    assert plain.summary["queries filled up with random passages"] == 1
    long = finetune(tmp_path / "long", steps=30)
    assert np.mean(losses(long.path)[-3:]) < np.mean(losses(long.path)[:3]) / 2


def test_the_retriever_gives_the_same_vectors_in_other_libraries(finetune: Finetune, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    texts = ["river stone bridge", "Chapter 3 the bread of the mill and a much longer oven", "a"]
    for pooling, similarity in (("cls", "dot"), ("mean", "cosine")):
        out = tmp_path / pooling
        made = finetune(out, pooling=pooling, similarity=similarity, steps=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            theirs = sentence_transformers.SentenceTransformer(str(made.path), device="cpu")
        assert theirs.similarity_fn_name == similarity
        ours = Retriever(str(out), device="cpu").encode(texts, "passage")
        assert np.abs(theirs.encode(texts) - ours).max() < 1e-5
        assert (np.abs(np.linalg.norm(ours, axis=1) - 1) < 1e-5).all() == (similarity == "cosine")
    # What is trained further goes on as it was saved.
    again = finetune(tmp_path / "again", encoder=str(out), steps=1)
    assert (again.summary["pooling"], again.summary["similarity"]) == ("mean", "cosine")


def command(groups: Path, beir: Path, start: Path, out: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "qontext", "finetune", str(groups), "--passages", str(beir), "--encoder", str(start),
        "--batch-size", "4", "--passages-per-query", "4", "--query-length", "12", "--passage-length", "24",
        "--lr", "1e-3", "--steps", "12", "--log-every", "1", "--checkpoint-minutes", "0", "--device", "cpu",
        "--micro-tokens", "80", "--out", str(out), "-q", *more,
    ]  # fmt: skip


def test_killed_it_ends_in_the_same_bits(
    finetune: Finetune, groups: Path, beir: Path, start: Path, tmp_path: Path
) -> None:
    settings = {"steps": 12, "micro_tokens": 80, "dev": str(beir), "dev_every": 5, "dropout": 0.1}
    whole, out = finetune(tmp_path / "whole", **settings), tmp_path / "killed"
    dev = ("--dev", str(beir), "--dev-every", "5", "--dropout", "0.1")
    child = subprocess.Popen(command(groups, beir, start, out, *dev), env=ENVIRONMENT)
    folder = out / "checkpoints" / "finetune"
    while child.poll() is None and not any(int(p.name[5:]) >= 4 for p in folder.glob("step-*")):
        time.sleep(0.01)
    assert child.poll() is None, "the child was killed while it trained"
    child.send_signal(signal.SIGKILL)
    child.wait()
    again = finetune(out, **settings)
    assert again.digest == whole.digest
    assert again.summary["dev"] == whole.summary["dev"]
    assert not (out / "checkpoints").exists() and not (out / "cache").exists()


def test_two_processes_train_the_encoder_of_one(
    finetune: Finetune, groups: Path, beir: Path, start: Path, tmp_path: Path
) -> None:
    settings = {"steps": 3, "temperature": 20.0, "dev": str(beir), "keep": "last", "lr": 1e-4}
    alone, two = finetune(tmp_path / "alone", micro_tokens=80, **settings).path, tmp_path / "two"
    more = ("--steps", "3", "--temperature", "20", "--dev", str(beir), "--keep", "last", "--lr", "1e-4")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    arguments = [*launch, *command(groups, beir, start, two, *more)[2:]]
    subprocess.run(arguments, env=ENVIRONMENT, check=True, capture_output=True)
    assert losses(alone) == pytest.approx(losses(two), rel=1e-4)
    assert apart(alone, two) < 2e-5


def test_the_best_weights_are_kept_and_patience_ends_the_run(
    finetune: Finetune, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qontext.engine.probe import Probe

    course = iter([0.1, 0.5, 0.3, 0.5, 0.2, 0.9])

    def measured(self: Any, model: Any, *vectors: Any) -> dict[str, float]:
        return {"MRR@10": next(course), "R@100": 1.0}

    monkeypatch.setattr(Probe, "measure", measured)
    dev = {"dev": str(beir), "dev_every": 2, "steps": 20, "schedule": "constant"}
    made = finetune(tmp_path / "stopped", patience=3, **dev)
    # The first measurement precedes the training: 0.5 at step 2 is best, then three are no better.
    assert made.summary["dev"] == {"kept": "best", "step": 2, "MRR@10": 0.5, "R@100": 1.0, "stopped at": 8}
    monkeypatch.undo()
    short = finetune(tmp_path / "short", steps=2, schedule="constant", warmup=0.1 * 20 / 2)
    assert apart(made.path, short.path) < 1e-6


@pytest.mark.parametrize("distill", ["kl", "margin-mse"])
def test_a_student_comes_closer_to_its_teacher(
    finetune: Finetune, scores: Path, tmp_path: Path, distill: str
) -> None:
    made = finetune(tmp_path / "out", teacher=str(scores), distill=distill, steps=30, temperature=10.0)
    course = losses(made.path)
    assert np.mean(course[-3:]) < np.mean(course[:3]) / 2
    assert distill in (made.path / "README.md").read_text()


def test_a_labelled_folder_is_trained_on_without_hard_negatives(
    finetune: Finetune, beir: Path, tmp_path: Path
) -> None:
    made = finetune(tmp_path / "out", beir, passages=None, dev=str(beir))
    assert made.summary["queries"] == 14 and made.summary["passages per query"] == 1
    assert 0 <= made.summary["dev before"]["MRR@10"] <= made.summary["dev"]["R@100"] == 1.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"passages": None}, "groups name passages by id.*--passages SOURCE"),
        (
            {"batch_size": 500},
            "a batch of 500 is larger than the training set, which has 14 queries.*at most 14",
        ),
        ({"passage_length": 5000}, "passage_length = 5000, but the encoder reads 512"),
        ({"encoder": "/nowhere/at/all"}, "/nowhere"),
        ({"patience": 2}, "patience needs --dev"),
        ({"dev": "/nowhere/set"}, "/nowhere"),
        ({"source": "/nowhere/groups"}, "/nowhere/groups"),
        ({"similarity": "euclidean"}, "similarity = 'euclidean'"),
        ({"source": "qrels.tsv"}, "are no training groups.*qontext mine"),
        ({"teacher": "/nowhere/run.trec"}, "/nowhere/run.trec"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input_is_told_in_a_sentence(
    finetune: Finetune, tmp_path: Path, settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    Path("qrels.tsv").write_text("q0\tp0\t1\n")
    with pytest.raises(QontextError, match=f"(?s){said}"):
        finetune(tmp_path / "out", **settings)


def test_groups_of_other_passages_are_refused(finetune: Finetune, tmp_path: Path) -> None:
    (tmp_path / "few.tsv").write_text("p0\tone passage\n")
    with pytest.raises(
        QontextError, match=r"names the passage 'p1', which is not among the passages \(\d+ in all"
    ):
        finetune(tmp_path / "out", passages=str(tmp_path / "few.tsv"))
    (tmp_path / "twice.tsv").write_text("p0\tone passage\np0\tanother\n")
    with pytest.raises(QontextError, match="the passage id 'p0' occurs twice"):
        finetune(tmp_path / "out", passages=str(tmp_path / "twice.tsv"))


def test_vectors_in_training_are_those_after_it(finetune: Finetune, start: Path) -> None:
    """What the loss sees is what the saved folder gives."""
    from qontext.engine.encoder import load_encoder
    from qontext.finetune.batches import MicroBatch
    from qontext.finetune.objective import BiEncoder
    from qontext.finetune.texts import tokenize

    encoder = load_encoder(str(start))
    texts = ["river stone", "bread of the mill " * 30]
    made = tokenize(enumerate(texts), 2, encoder.tokenizer, 24)
    ids, mask = made.pad(np.arange(2), encoder.tokenizer.pad_token_id)
    with torch.inference_mode():
        ours = BiEncoder(encoder, "mean", "dot", 1.0).represent(MicroBatch(ids, mask, 0)).numpy()
        cosine = BiEncoder(encoder, "mean", "cosine", 1.0).represent(MicroBatch(ids, mask, 0)).numpy()
    theirs = Retriever(str(start), device="cpu", pooling="mean", max_length=24).encode(texts, "passage")
    assert np.abs(ours - theirs).max() < 1e-5
    assert np.abs(cosine - theirs / np.linalg.norm(theirs, axis=1, keepdims=True)).max() < 1e-5


def test_measurements_after_the_step_that_a_run_resumes_from_are_made_anew(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from qontext.artifacts import Workdir
    from qontext.engine.distributed import Group
    from qontext.finetune.dev import Dev

    course = {2: 0.5, 4: 0.4, 6: 0.3}
    model: Any = torch.nn.Linear(1, 1)
    model.vectors = None
    step = 0
    probe: Any = SimpleNamespace(measure=lambda *_: {"MRR@10": course[step]})
    alone = Group(0, 1, torch.device("cpu"))
    dev = Dev(probe, model, alone, Workdir(tmp_path), every=2, last=6, patience=2, keep_best=True)
    ends = []
    for step in (1, 2, 3, 4, 3, 4, 5, 6):  # killed after step 4, resumed from step 2
        ends.append(bool(dev(step).get("stop")))
    assert [row["step"] for row in dev.history()] == [2, 4, 6]
    assert ends == [False] * 7 + [True]


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
    found = api.search(vectors, data=beir, split="dev", k=5, out=tmp_path / "run")
    same = api.search(
        vectors, data=beir, split="dev", k=5, encoder=str(pair / "query"), untied=True, out=tmp_path / "same"
    )
    assert (found.path / "run.trec").read_bytes() == (same.path / "run.trec").read_bytes()
    assert queries.summary["texts"] == 20

    # Training goes on from both halves; tied, the second half is left aside and that is said.
    again = finetune(tmp_path / "again", encoder=str(pair), steps=1, lr=1e-9, **{**settings, "dropout": 0.0})
    assert apart(again.path / "query", pair / "query") < 1e-6 > apart(again.path, pair)
    capsys.readouterr()
    finetune(tmp_path / "one", encoder=str(pair), steps=1)
    assert "--untied trains both" in " ".join(capsys.readouterr().err.split())
