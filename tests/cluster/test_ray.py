"""Parts on a Ray cluster of several nodes, all on this machine: the result of one process, whatever breaks."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cluster.conftest import IMPATIENT, NODE, Inputs

from qontext import api
from qontext.cluster import on_ray
from qontext.cluster.worker import Order, Superseded, Worker, WorkerDirectory
from qontext.data.collection import read_passages
from qontext.frame import stages
from qontext.frame.artifacts import Artifact, Workdir
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


def test_a_worker_that_is_not_heard_of_is_given_up(
    cluster: Any,
    generate: Callable[..., Artifact],
    is_whole: Callable[[Artifact], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(on_ray, "BEAT", 0.5)
    monkeypatch.setattr(on_ray, "SILENCE", 4.0)
    (tmp_path / "stop d3#1").touch()
    artifact = generate("out", on="ray")
    assert not (tmp_path / "stop d3#1").exists()
    is_whole(artifact)


def test_a_part_that_fails_stops_the_job_and_keeps_the_others(
    cluster: Any, generate: Callable[..., Artifact], is_whole: Callable[[Artifact], None], tmp_path: Path
) -> None:
    poison = tmp_path / "poison d3#1"
    poison.touch()
    with pytest.raises(QontextError, match=r"the part part-\d+.parquet failed 3 times: ValueError: d3#1 can"):
        generate("out", on="ray")
    assert poison.read_text() == "tried\n" * 3
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert len(before) > 3 and not list((tmp_path / "out").glob(".tmp*"))
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


def test_the_head_is_killed(
    cluster: Any,
    doomed: subprocess.Popen[str],
    inputs: Inputs,
    generate: Callable[..., Artifact],
    is_whole: Callable[[Artifact], None],
    tmp_path: Path,
) -> None:
    """The command ends with a sentence; finished parts stay, and it resumes without a cluster or on another one."""
    assert doomed.stdin is not None and doomed.stdout is not None
    address = doomed.stdout.readline().strip()
    command = [
        sys.executable, "-c", IMPATIENT, "generate", str(inputs.folder / "passages"), "--generator", SLOW, "--pause", "0.3",
        "--signals", str(tmp_path), "--on", address, "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: parts_in(tmp_path / "out") >= 2 or running.poll() is not None)
    assert running.poll() is None, running.stderr.read()
    print(file=doomed.stdin, flush=True)
    assert doomed.stdout.readline() == "killed\n"
    ids = [passage.id for passage in read_passages(inputs.folder / "passages")]
    orders = [tmp_path / f"die {id}" for id in ids]
    for order in orders:  # as if the head's machine had workers, too
        order.touch()
    _, said = running.communicate()
    assert running.returncode == 2, said
    *_, line = (line for line in said.splitlines() if line)
    assert line.startswith(f"error: the head of the Ray cluster at {address} is gone: ")
    assert line.endswith("Start the cluster again; the same command resumes.")
    assert not all(order.exists() for order in orders)
    for order in orders:
        order.unlink(missing_ok=True)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    for name, on in (("out", "ray"), ("copy", "local")):
        artifact = generate(name, pause=0.3, on=on)
        assert all((artifact.path / part).stat().st_mtime_ns == changed for part, changed in before.items())
        is_whole(artifact)


def test_a_head_that_does_not_answer_is_not_waited_for() -> None:
    """Ray would end this process in the middle of the call, without a sentence."""
    ended = threading.Event()
    job = on_ray._PartsJob.__new__(on_ray._PartsJob)
    job.ray, job.resource, job.room = SimpleNamespace(cluster_resources=ended.wait), "CPU", 3
    assert job._room() == 3
    ended.set()


def test_what_a_node_must_have(inputs: Inputs, tmp_path: Path) -> None:
    """A worker that is told to work where it cannot says why."""
    inputs.make("tokens", tmp_path / "out", shard="0/3")
    stage = stages.load("tokens")
    parts = stage.run(stage.config.make(inputs.settings("tokens"), where="tokens"), Workdir(tmp_path / "out"))
    order = Order.of("tokens", parts, "0.1")
    (tmp_path / "empty").mkdir()
    for changed, message in (
        (
            {"version": "0.0.1"},
            "has qontext .*, the command was started with 0.0.1. Install the same version",
        ),
        (
            {"out": str(tmp_path / "empty")},
            "does not see this directory. All nodes need a shared file system",
        ),
        ({"out": str(tmp_path / "nowhere")}, "does not see this directory"),
        ({"key": "another"}, "does not see this directory"),
        ({"folder": str(tmp_path / "nowhere")}, "in which the command was started"),
    ):
        _, failure = Worker(order._replace(**changed)).open()
        with pytest.raises(QontextError, match=message):
            raise failure.error()


def test_a_late_write_into_a_finished_directory_leaves_nothing(inputs: Inputs, tmp_path: Path) -> None:
    artifact = inputs.make("tokens", tmp_path / "out")
    before = sorted(path.name for path in artifact.path.iterdir())
    late = WorkerDirectory(artifact.path, "0.1")
    with pytest.raises(Superseded), late.write("chunk-00000.npz") as path:
        path.write_bytes(b"late")
    assert sorted(path.name for path in artifact.path.iterdir()) == before
