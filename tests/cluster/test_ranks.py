"""Trainings on a Ray cluster of several nodes, all on this machine: the result of one process, or of ranks of torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.conftest import IMPATIENT, Inputs
from tests.tiny import Server

from qontext import api
from qontext.cluster.rank import Ended, Rank, TrainingOrder, interface_of
from qontext.cluster.ranks import _Ranks
from qontext.frame import artifacts, log
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError

ray = pytest.importorskip("ray", reason="the package ray is not installed")

COMMON = {"batch_size": 4, "log_every": 1, "precision": "fp32", "device": "cpu"}
Train = Callable[..., Artifact]


@pytest.fixture
def pretrain(inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """pretrain("name", on="ray") in a directory of its own, by which its processes are known."""
    monkeypatch.chdir(tmp_path)

    def train(name: str, **settings: Any) -> Artifact:
        tiny = {"encoder": "tiny", "tokenizer": str(inputs.folder / "encoder"), "method": "mlm", "workers": 1}
        made: Artifact = api.pretrain(
            inputs.folder / "passages", out=tmp_path / name, **{**COMMON, **tiny, "steps": 3, **settings}
        )
        return made

    return train


def ranks_in(folder: Path) -> list[int]:
    """The processes of ranks that work in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_rank = (process / "cmdline").read_bytes().startswith(b"ray::Rank")
            if is_rank and (process / "cwd").resolve() == folder.resolve():
                found.append(int(process.name))
        except OSError:  # it has ended
            continue
    return found


def test_one_rank_makes_what_this_process_makes(cluster: Any, pretrain: Train) -> None:
    there = pretrain("there", on="ray", ranks=1)
    assert there.digest == pretrain("here").digest and "ranks" not in there.config


def test_ranks_make_what_those_of_torchrun_make(
    cluster: Any, inputs: Inputs, pretrain: Train, warm: Server, tmp_path: Path
) -> None:
    """Of three machines, two divide the batch. The retriever is trained from what the first training made."""
    first = pretrain("there", on="ray")
    argv = [
        "pretrain", str(inputs.folder / "passages"), "--method", "mlm", "--encoder", "tiny", "--tokenizer",
        str(inputs.folder / "encoder"), "--workers", "1", "--steps", "3", "--batch-size", "4", "--log-every", "1",
        "--precision", "fp32", "--device", "cpu", "--out", str(tmp_path / "here"),
    ]  # fmt: skip
    warm.run(argv, tmp_path / "said", ranks=2)
    assert first.digest == artifacts.open_artifact(tmp_path / "here").digest
    argv = [
        "finetune", str(inputs.folder / "labeled"), "--encoder", str(first.path), "--steps", "2",
        "--passages-per-query", "2", "--batch-size", "4", "--precision", "fp32", "--device", "cpu",
    ]  # fmt: skip
    warm.run([*argv, "--out", str(tmp_path / "retriever")], tmp_path / "said", ranks=2)
    there = api.finetune(
        inputs.folder / "labeled",
        encoder=first,
        steps=2,
        passages_per_query=2,
        on="ray",
        ranks=2,
        out=tmp_path / "retriever there",
        **{**COMMON, "log_every": 20},
    )
    assert there.digest == artifacts.open_artifact(tmp_path / "retriever").digest


def test_a_lost_rank_ends_the_training_and_the_same_command_resumes(
    cluster: Any, pretrain: Train, tmp_path: Path
) -> None:
    settings = {"steps": 30, "checkpoint_minutes": 0, "on": "ray", "ranks": 2}
    errors: list[QontextError] = []

    def command() -> None:
        try:
            pretrain("out", **settings)
        except QontextError as error:
            errors.append(error)

    job = threading.Thread(target=command)
    job.start()
    while job.is_alive() and not list((tmp_path / "out").glob("checkpoints/*/*")):
        time.sleep(0.02)
    processes = ranks_in(tmp_path)
    assert len(processes) == 2
    os.kill(processes[-1], signal.SIGKILL)
    job.join()
    assert len(errors) == 1 and "is lost" in errors[0].message
    assert errors[0].remedy == "The same command resumes from the last checkpoint."
    while ranks_in(tmp_path):
        time.sleep(0.05)
    steps = (tmp_path / "out" / "logs" / "metrics.jsonl").read_text().count("\n")
    assert 0 < steps < 30
    made = pretrain("out", **settings)
    assert made.summary["steps"] == 30
    assert (made.path / "logs" / "metrics.jsonl").read_text().count("\n") >= 30


def test_the_head_is_killed(
    pretrain: Train, doomed: subprocess.Popen[str], inputs: Inputs, tmp_path: Path
) -> None:
    """The training ends with a sentence, and its checkpoints stay."""
    assert doomed.stdin is not None and doomed.stdout is not None
    address = doomed.stdout.readline().strip()
    options = [
        "--method", "mlm", "--encoder", "tiny", "--tokenizer", str(inputs.folder / "encoder"), "--workers", "1",
        "--steps", "2000", "--batch-size", "4", "--log-every", "1", "--checkpoint-minutes", "0", "--precision", "fp32",
        "--device", "cpu",
    ]  # fmt: skip
    argv = ["pretrain", str(inputs.folder / "passages"), *options, "--out", str(tmp_path / "out")]
    command = [sys.executable, "-c", IMPATIENT, *argv, "--on", address, "--ranks", "1"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while running.poll() is None and not list((tmp_path / "out").glob("checkpoints/*/*")):
        time.sleep(0.02)
    print(file=doomed.stdin, flush=True)
    _, said = running.communicate()
    assert running.returncode == 2, said
    assert f"the head of the Ray cluster at {address} is gone: " in said.splitlines()[-1]
    while ranks_in(tmp_path):
        time.sleep(0.05)
    assert list((tmp_path / "out").glob("checkpoints/*/*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_ranks_save_their_step(
    cluster: Any, pretrain: Train, tmp_path: Path, number: signal.Signals
) -> None:
    def interrupt_after_a_step() -> None:
        metrics = tmp_path / "out" / "logs" / "metrics.jsonl"
        while not (metrics.exists() and metrics.read_text()):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    before = signal.signal(
        number, signal.default_int_handler
    )  # it may be ignored where the tests run in the background
    try:
        threading.Thread(target=interrupt_after_a_step, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            pretrain("out", steps=2_000, on="ray", ranks=2)
    finally:
        signal.signal(number, before)
    assert list((tmp_path / "out").glob("checkpoints/*/*"))


def test_what_a_rank_refuses_is_the_error_of_the_command(cluster: Any, pretrain: Train) -> None:
    with pytest.raises(QontextError, match="the batch size 4 cannot be divided among 3 processes"):
        pretrain("a", on="ray", ranks=3)
    with pytest.raises(QontextError, match="there are 9 ranks, but the cluster has 3 CPUs"):
        pretrain("b", on="ray", ranks=9)
    with pytest.raises(QontextError, match="--ranks needs --on"):
        pretrain("c", ranks=2)


class OneAfterTheOther:
    """Ray, as far as messages of ranks go: references are answers, the first of which is there."""

    exceptions = ray.exceptions

    def wait(self, references: list[Any], **settings: Any) -> tuple[list[Any], list[Any]]:
        return references[:1], references[1:]

    def get(self, reference: str) -> Any:
        return ANSWERS[reference]


WARNED, SAID = (log.WARNING, "first"), (log.NOTE, "last: 100% done")
ANSWERS: dict[str, Any] = {"beat": [WARNED], "end": tuple(Ended(lines=[WARNED, SAID])), "late beat": [SAID]}


def test_the_last_messages_of_a_rank_are_shown_too_each_once_and_with_its_level(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("qontext.cluster.ranks.ClusterHead", lambda ray, on: None)
    ranks = _Ranks(OneAfterTheOther(), "ray")
    ranks.heard, ranks.beats = [0.0, 0.0], {"beat": 0}
    with caplog.at_level(log.NOTE, "qontext"):
        ranks._take(1.0)
        ranks.running, ranks.beats = {"end": 0}, {"late beat": 0}
        ranks._take(1.0)
        ranks._take(1.0)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [WARNED, SAID]


def test_a_rank_keeps_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(TrainingOrder("pretrain", {}, "out", False, ".", "1", None))
    handlers, level = log.logger.handlers[:], log.logger.level
    monkeypatch.setattr(rank, "_train", lambda: (log.warn("first"), log.note("second")))
    try:
        ended = Ended(*rank.run({}))
    finally:
        log.logger.handlers[:] = handlers
        log.logger.setLevel(level)
    assert ended.lines == rank.beat(0) == [(log.WARNING, "first"), (log.NOTE, "second")]
    assert rank.beat(1) == [(log.NOTE, "second")]


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo" and interface_of("192.0.2.1") is None
