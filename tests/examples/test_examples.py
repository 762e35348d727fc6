"""The programs in `examples/` that use whole commands: they run, and end with what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
from pathlib import Path

import pytest
from tests.examples.test_loops import FOLDER, example
from tests.tiny import save_bert, write_inputs

from qontext import api
from qontext.evaluation.comparison import Comparison
from qontext.finetune.losses.base import ScoredBatch
from qontext.frame.artifacts import open_artifact

QUICK = {"OMP_NUM_THREADS": "1", "QONTEXT_AUTO_PRECISION": "fp32", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def inputs(tmp_path: Path, minilm: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Documents, a labeled set and a random encoder, in the current folder."""
    write_inputs(tmp_path, "data", {"train": range(20), "test": range(20, 30)})
    save_bert(tmp_path / "encoder", minilm)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_whole_pipeline(inputs: Path) -> None:
    (inputs / "bin").mkdir()
    command = inputs / "bin" / "qontext"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qontext "$@"\n')
    command.chmod(0o755)
    small = {"STEPS": "2", "BATCH": "4", "LENGTH": "40", "PATH": f"{command.parent}:{os.environ['PATH']}"}
    script = ["bash", str(FOLDER / "whole_pipeline.sh"), "docs.jsonl", "encoder", "whole"]
    done = subprocess.run(
        script, env={**os.environ, **QUICK, **small}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for system in ("bm25", "dense", "both"):
        assert system in done.stdout
        assert open_artifact(inputs / "whole" / f"{system}-scores").summary["queries"] > 0
    assert open_artifact(inputs / "whole" / "encoder").config["context"] == "query"
    held_out = (inputs / "whole" / "holdout" / "measured" / "queries.jsonl").read_text()
    trained = open_artifact(inputs / "whole" / "holdout").summary["training_queries"]
    assert held_out and trained > 0


def test_an_own_loss_is_trained_and_compared(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    size = ["--steps", "2", "--batch-size", "4"]
    comparison = example("own_loss").main(["data", "--encoder", "encoder", "--out", "out", *size])
    assert isinstance(comparison, Comparison)
    assert open_artifact(inputs / "out" / "margin-retriever").summary["losses"].keys() == {"additive-margin"}
    assert open_artifact(inputs / "out" / "contrastive-retriever").config["loss"] == "contrastive"


def test_the_own_loss_is_its_equation() -> None:
    import torch

    own = example("own_loss")
    batch = ScoredBatch(
        representation=None,  # type: ignore[arg-type]
        passages=None,
        similarity_QP=torch.tensor([[0.8, 0.7, -0.2]]),
        temperature=0.1,
        is_own_QP=torch.tensor([[True, True, True]]),
        is_positive_QP=torch.tensor([[True, False, False]]),
        is_false_negative_QP=torch.tensor([[False, False, False]]),
        teacher_P=torch.full((3,), torch.nan),
    )
    loss = own.AdditiveMargin(own.AdditiveMarginOptions(margin=0.2))(batch)["additive-margin"]
    positive, *negatives = (torch.tensor(score / 0.1).exp() for score in (0.8 - 0.2, 0.7, -0.2))
    assert loss.item() == pytest.approx(-(positive / (positive + sum(negatives))).log().item(), rel=1e-5)


def test_a_server_answers_whoever_has_the_token(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    index = str(api.index("data", backend="bm25", out="index").path)
    server = example("serve_and_ask")
    (result,) = server.main(index, "chapter 7")[:1]
    assert result["title"] == "Chapter 7"
    token = "a token of the test"
    with server.serving(index, token) as address:
        assert server.ask(address, token, "chapter 7", k=1)[0]["passage"] == result["passage"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            server.ask(address, "another token", "chapter 7")
    with pytest.raises(urllib.error.URLError, match="refused"):
        server.ask(address, token, "chapter 7")
