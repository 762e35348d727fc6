"""Interrupted, killed and failing pre-training: it resumes, and loses no finished work."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.pretrain.runs import train
from tests.tiny import Running

from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.training import checkpoint
from qontext.training.metrics import read


def test_killed_it_is_resumed_in_its_format_on_a_machine_of_another_kind(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[..., Running],
) -> None:
    out, settings = tmp_path / "killed", {"steps": 12}
    monkeypatch.setenv("QONTEXT_AUTO_PRECISION", "bf16")
    whole = train(corpus, tmp_path / "whole", **settings)
    running = start(out, QONTEXT_AUTO_PRECISION="bf16")
    running.kill_when(lambda: [*out.glob("checkpoints/cocondenser/step-*")])
    monkeypatch.setenv("QONTEXT_AUTO_PRECISION", "fp32")
    with pytest.raises(QontextError, match=r"precision was 'auto' and is now 'fp32'"):
        train(corpus, out, precision="fp32", **settings)
    trained = train(corpus, out, **settings)
    assert trained.meta["computed"] == "bf16"
    assert trained.digest == whole.digest


def test_snapshots_are_kept_and_survive_a_kill(
    corpus: Path, tmp_path: Path, start: Callable[..., Running]
) -> None:
    out, settings = tmp_path / "killed", {"steps": 12, "snapshots": 3}
    whole = train(corpus, tmp_path / "whole", **settings)
    running = start(out, "--snapshots", "3")
    running.kill_when(lambda: (out / "snapshots" / "2").exists())
    assert train(corpus, out, **settings).digest == whole.digest
    folders = [whole.path / "snapshots" / name for name in ("1", "2", "3")] + [whole.path]
    first, _, last, final = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(torch.equal(last[name], final[name]) for name in final)
    assert not all(torch.equal(first[name], final[name]) for name in final)
    assert sorted(path.name for path in (whole.path / "snapshots").iterdir()) == ["1", "2", "3"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_same_command_goes_on(
    tmp_path: Path, number: signal.Signals, start: Callable[..., Running]
) -> None:
    out = tmp_path / "out"
    running = start(out, "--checkpoint-minutes", "60", "--steps", "2000")
    while not running.ended() and not (read(out / "logs/metrics.jsonl") if out.exists() else []):
        time.sleep(0.02)
    running.send(number)
    assert running.wait() == {130}, running.text()
    text = running.text()
    saved = re.search(r"saved at step ([\d,]+)", text)
    assert saved and "the same command" in text and "Traceback" not in text
    (folder,) = (out / "checkpoints" / "cocondenser").glob("step-*")
    assert int(folder.name[5:]) == int(saved[1].replace(",", ""))


def test_a_step_that_is_not_finite_is_left_out_and_many_in_a_row_stop_the_run(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qontext.pretrain.objectives.base import Objective

    plain, calls = Objective.predict, {"n": 0}

    def sometimes(self: Any, hidden: Any, text: Any) -> Any:
        calls["n"] += 1
        return plain(self, hidden, text) * (float("nan") if calls["n"] in bad else 1.0)

    monkeypatch.setattr(Objective, "predict", sometimes)
    bad: Any = {3}
    trained = train(corpus, tmp_path / "once", method="mlm", steps=6)
    assert trained.summary["mlm"]["steps_skipped"] == 1

    assert all(torch.isfinite(p).all() for p in load_file(trained.path / "model.safetensors").values())
    bad, calls["n"] = range(3, 1000), 0
    with pytest.raises(QontextError, match=r"not a finite number for 1[0-9] steps in a row.*Lower --lr"):
        train(corpus, tmp_path / "always", method="mlm", steps=40)


def test_checkpoints_are_rotated_and_broken_ones_named(corpus: Path, tmp_path: Path) -> None:
    work = Workdir(tmp_path)
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    for step in (1, 2, 3):
        checkpoint.save(work, "c", module, optimizer, {"step": step, "skipped": 0, "passages": 0})
    assert [p.name for p in sorted((tmp_path / "c").iterdir())] == ["step-00000002", "step-00000003"]
    (tmp_path / "c/step-00000003/weights.safetensors").write_bytes(b"garbage")
    with pytest.raises(
        QontextError,
        match=r"weights\.safetensors: the checkpoint cannot be read.*Remove the folder .*step-00000003",
    ):
        checkpoint.load(work, "c", module, optimizer)


def test_a_time_limit_ends_a_training_and_lowers_its_rate_with_the_time(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qontext.training import loop

    now = iter(range(0, 10_000, 2))
    monkeypatch.setattr(loop._Clock, "elapsed", lambda self: float(next(now)))
    settings: dict[str, Any] = {"method": "mlm", "steps": 1_000, "warmup": 0.0, "log_every": 1}
    trained = train(corpus, tmp_path / "out", minutes=0.5, **settings)
    assert trained.summary["steps"] == 8, (
        "the time is read before and after a step, and in between it goes on"
    )
    lines = [json.loads(line) for line in (trained.path / "logs/metrics.jsonl").read_text().splitlines()]
    rates = [line["lr"] / lines[0]["lr"] for line in lines]
    assert rates == pytest.approx([1 - 4 * n / 30 for n in range(8)], abs=0.01)
