"""The trackers and the digest of pre-training, and independence from processes and micro-batches."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.pretrain.runs import finish, train
from tests.tiny import Running

from qontext.frame.artifacts import open_artifact
from qontext.training.metrics import read


def test_the_digest_depends_on_neither_paths_nor_reports(
    corpus: Path, tmp_path: Path, start: Callable[..., Running]
) -> None:
    """Nor do the reported losses depend on a kill between two reports."""
    moved = tmp_path / "moved"
    shutil.copytree(corpus, moved)
    whole, again, killed = (tmp_path / name for name in ("whole", "again", "killed"))
    phases = ("--condenser-steps", "3", "--log-every")
    finish(start(whole, *phases, "100"))
    finish(start(again, *phases, "4", source=moved))
    folder = killed / "checkpoints" / "cocondenser"
    start(killed, *phases, "100").kill_when(lambda: any(folder.glob("step-*")))
    finish(start(killed, *phases, "100"))
    artifacts = [open_artifact(path) for path in (whole, again, killed)]
    assert len({artifact.digest for artifact in artifacts}) == 1
    cards = [(artifact.path / "README.md").read_text() for artifact in artifacts]
    assert cards[0] == cards[2] != cards[1]
    assert artifacts[0].summary["cocondenser"]["losses"] == artifacts[2].summary["cocondenser"]["losses"]


def test_two_processes_and_any_micro_batches_train_one_encoder(
    tmp_path: Path, start: Callable[..., Running]
) -> None:

    settings = ("--steps", "4", "--dropout", "0.1", "--precision", "fp32")
    alone = tmp_path / "alone"
    finish(start(alone, *settings))
    one = load_file(alone / "model.safetensors")
    for micro_tokens in ("0", "100"):
        together = tmp_path / f"together-{micro_tokens}"
        finish(start(together, *settings, "--micro-tokens", micro_tokens, ranks=2))
        two = load_file(together / "model.safetensors")
        assert max((one[name] - two[name]).abs().max().item() for name in one) < 2e-5
        for a, b in zip(
            read(alone / "logs/metrics.jsonl"), read(together / "logs/metrics.jsonl"), strict=True
        ):
            assert a["losses"] == pytest.approx(b["losses"], abs=4e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "cocondenser", "gradient_cache": "on"},
        {"method": "cot-mae", "decoder": "autoregressive"},
        {"method": "retromae"},
    ],
    ids=lambda settings: settings["method"],
)
def test_dropout_does_not_depend_on_the_micro_batches(
    corpus: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:

    shared = {**settings, "dropout": 0.1, "precision": "fp32", "log_every": 1}
    whole, cut = (train(corpus, tmp_path / str(n), micro_tokens=n, **shared).path for n in (0, 80))
    one, two = load_file(whole / "model.safetensors"), load_file(cut / "model.safetensors")
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 4e-5
    for a, b in zip(read(whole / "logs/metrics.jsonl"), read(cut / "logs/metrics.jsonl"), strict=True):
        assert a["losses"] == pytest.approx(b["losses"], abs=4e-5)


def test_tensorboard_gets_the_losses(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'track' is not installed")
    trained = train(corpus, tmp_path / "out", method="mlm", track="tensorboard")
    (events,) = (trained.path / "logs/tensorboard").iterdir()
    assert b"mlm/losses/mlm" in events.read_bytes()
