"""Parts and trainings on a Ray cluster of several nodes, all on this machine: the result of one process, whatever breaks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.conftest import NODE, Inputs
from tests.tiny import Server

from qontext import api
from qontext.cluster.on_ray import Order, Worker, connected
from qontext.frame import artifacts, trust
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError

ray = pytest.importorskip("ray", reason="the package ray is not installed")

SLOW = "tests.cluster.slow:Slow"


@pytest.fixture
def generate(inputs: Inputs, tmp_path: Path) -> Callable[..., Artifact]:
    """Queries of the slow generator: generate("name", pause=0.1, on="ray")."""

    def make(name: str, **settings: Any) -> Artifact:
        artifact: Artifact = api.generate(
            inputs.folder / "passages", generator=SLOW, signals=str(tmp_path), out=tmp_path / name, **settings
        )
        return artifact

    return make


@pytest.fixture
def is_whole(generate: Callable[..., Artifact], tmp_path: Path) -> Callable[[Artifact], None]:
    """Checks that a directory has what one process makes, and nothing else."""

    def check(artifact: Artifact) -> None:
        alone = generate("alone")
        assert artifact.digest == alone.digest and not artifact.verify()
        files = {path.name for path in artifact.path.iterdir() if not path.name.startswith(".lock")}
        assert files == {"meta.json", *(path.name for path in alone.parts())}

    return check


def parts_in(out: Path) -> int:
    return len(list(out.glob("part-*")))


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)


def test_nodes_make_what_one_process_makes(cluster: Any, inputs: Inputs, tmp_path: Path) -> None:
    """With a model, whose facts the summary has."""
    artifact = inputs.make("encode", tmp_path / "out", on="ray")
    assert artifact.digest == inputs.digest("encode") and not list(artifact.path.rglob(".tmp*"))
    assert artifact.summary["encoded_now"] == artifact.summary["texts"]
    assert {**artifact.summary, "texts_per_second": 0} == {
        **inputs.whole["encode"].summary,
        "texts_per_second": 0,
    }


@pytest.mark.parametrize(
    "name", ["retrieve", "retrieve words", "split", "mine", "tokens", "rerank", "filter", "expand"]
)
def test_nodes_make_what_one_process_makes_of_other_stages(
    cluster: Any, inputs: Inputs, tmp_path: Path, name: str
) -> None:
    artifact = inputs.make(name, tmp_path / "out", on="ray")
    assert artifact.digest == inputs.digest(name)
    assert all(path.name.startswith(".lock") for path in artifact.path.glob(".*"))


def test_a_worker_is_killed(
    cluster: Any, generate: Callable[..., Artifact], is_whole: Callable[[Artifact], None], tmp_path: Path
) -> None:
    (tmp_path / "die d3#1").touch()
    artifact = generate("out", on="ray")
    assert not (tmp_path / "die d3#1").exists()
    is_whole(artifact)


def test_a_part_that_fails_stops_the_job_and_keeps_the_others(
    cluster: Any, generate: Callable[..., Artifact], is_whole: Callable[[Artifact], None], tmp_path: Path
) -> None:
    poison = tmp_path / "poison d3#1"
    poison.touch()
    with pytest.raises(ValueError, match="d3#1 cannot be read"):
        generate("out", on="ray")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert not list((tmp_path / "out").glob(".tmp*"))
    poison.unlink()
    is_whole(generate("out"))  # without a cluster
    assert all(path.stat().st_mtime_ns == changed for path, changed in before.items())


def test_a_node_is_removed_and_another_joins(
    cluster: Any, generate: Callable[..., Artifact], is_whole: Callable[[Artifact], None], tmp_path: Path
) -> None:
    artifacts_made: list[Artifact] = []
    job = threading.Thread(target=lambda: artifacts_made.append(generate("out", pause=0.3, on="ray")))
    job.start()
    wait_until(lambda: parts_in(tmp_path / "out") >= 3 or not job.is_alive())
    cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
    cluster.add_node(**NODE)
    job.join()
    is_whole(artifacts_made[0])


def test_the_command_is_killed_and_started_again(
    cluster: Any,
    inputs: Inputs,
    generate: Callable[..., Artifact],
    is_whole: Callable[[Artifact], None],
    tmp_path: Path,
) -> None:
    command = [
        sys.executable, "-m", "qontext", "generate", str(inputs.folder / "passages"), "--generator", SLOW,
        "--signals", str(tmp_path), "--pause", "0.3", "--on", cluster.address, "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: parts_in(tmp_path / "out") >= 2 or running.poll() is not None)
    assert running.poll() is None, running.stderr.read()
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    artifact = generate("out", pause=0.3, on="ray")
    assert all(path.stat().st_mtime_ns == changed for path, changed in before.items())
    is_whole(artifact)


def test_an_address_at_which_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # by other tests of this process
    with socket.create_server(("127.0.0.1", 0)) as listener:
        on = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(trust.Untrusted), connected(on):
        pass
    trust.give(on)
    with pytest.raises(QontextError, match=f"cannot connect to the Ray cluster at {on}"), connected(on):
        pass


def test_a_node_with_another_version_or_without_the_directory_says_so(tmp_path: Path) -> None:
    order = Order.of("tokens", {"texts": "p.jsonl", "tokenizer": "t"}, tmp_path / "out")
    part: Any = None
    with pytest.raises(QontextError, match=r"was started with 0\.0\.1"):
        Worker(order._replace(version="0.0.1"), "key", "w").make(part)
    with pytest.raises(QontextError, match="does not see this directory"):
        Worker(order, "key", "w").make(part)


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
    with pytest.raises(QontextError, match="--ranks needs --on"):
        pretrain("c", ranks=2)
