"""A command that is killed at any moment, and given again, ends in the same bytes as one that was left alone.

QONTEXT_KILLS is how often each command is killed (`make kills` raises it). The moments are hashes of the command and of
the number of the kill, so that what failed once fails again.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from qontext.retrieve.searcher import Searcher

from .conftest import ADAPTS, COMMANDS, KILLS, UPDATE, World, files, made_by_adapt, results


def moment(name: str, number: int) -> float:
    """When to kill, as a share of the whole run: one moment from each of as many stretches as there are kills."""
    seed = hashlib.sha256(f"{name} {number}".encode()).hexdigest()
    return (number + random.Random(seed).random()) / KILLS


def kill(
    world: World,
    name: str,
    out: Path,
    seconds: float,
    *more: str,
    start: Path | None = None,
    by: signal.Signals = signal.SIGKILL,
) -> None:
    """Start the command, in a copy of the directory `start`, and end it after so long by a signal; earlier, if it was over
    before."""
    while True:
        if start:
            shutil.copytree(start, out)
        running = world.disturbed.start(name, out, *more)
        time.sleep(max(0.0, running.since + seconds - time.monotonic()))
        running.send(by)
        statuses = running.wait()
        ended = {-signal.SIGKILL} if by == signal.SIGKILL else {130, -by}
        assert statuses <= {0, *ended} and "Traceback" not in running.text(), running.text()
        if statuses & ended:
            return
        shutil.rmtree(out)
        seconds *= 0.7


@pytest.mark.parametrize("number", range(KILLS))
@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ADAPTS])
def test_killed_it_ends_in_the_same_bytes(world: World, tmp_path: Path, name: str, number: int) -> None:
    whole, out = world.whole(name), tmp_path / name
    kill(world, name, out, moment(name, number) * world.seconds[name])
    resumed = world.disturbed.start(name, out)
    assert resumed.wait() == {0}, resumed.text()
    assert results(out) == results(whole)
    assert files(out) == files(whole)
    assert files(world.disturbed.temporary) == []


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("number", range(KILLS))
@pytest.mark.parametrize("name", ADAPTS)
def test_adapt_that_ended_by_a_signal_ends_in_the_same_bytes(
    world: World, tmp_path: Path, name: str, number: int, by: signal.Signals
) -> None:
    whole, out = world.whole(name), tmp_path / name
    drawn = name if by == signal.SIGKILL else f"{name} {by}"
    seconds = moment(drawn, number) * world.seconds[name]
    kill(world, name, out, seconds, start=world.planned(name), by=by)
    resumed = world.disturbed.start(name, out)
    assert resumed.wait() == {0}, resumed.text()
    assert made_by_adapt(out) == made_by_adapt(whole)
    assert files(out) == files(whole)
    assert files(world.disturbed.temporary) == []


@pytest.mark.parametrize("number", range(KILLS))
@pytest.mark.parametrize("name", ADAPTS)
def test_adapt_killed_while_it_plans_leaves_nothing(
    world: World, tmp_path: Path, name: str, number: int
) -> None:
    """Of several encoders, the same one is chosen, by the same scores."""
    world.whole(name)
    planned, out = world.planned(name), tmp_path / name
    drawn = "plan" if name == "adapt" else f"plan {name}"
    kill(world, name, out, moment(drawn, number) * world.seconds[planned.name], "--dry-run")
    again = world.disturbed.start(name, out, "--dry-run")
    assert again.wait() == {0}, again.text()
    assert files(out) == files(planned)
    assert encoders_of(out) == encoders_of(planned)
    assert files(world.disturbed.temporary) == []


def encoders_of(planned: Path) -> dict[str, Any]:
    """The measures of several initial encoders."""
    return json.loads((planned / "plan.json").read_text()).get("starts", {})


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_update_still_answers(
    world: World, tmp_path: Path, number: int, signal_: signal.Signals
) -> None:
    whole = world.updated()
    seconds = moment(f"update {signal_}", number) * world.seconds["updated"]
    end_an_update(world, UPDATE.split(), tmp_path, seconds, signal_, whole)


@pytest.mark.skipif(KILLS == 1, reason="a part of 'make kills'")
@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_update_with_milvus_lite_still_answers(world: World, tmp_path: Path, number: int) -> None:
    update, whole = [*UPDATE.split(), "--index", "milvus"], tmp_path / "whole"
    shutil.copytree(world.whole("adapt"), whole)
    started = time.monotonic()
    world.reference.run([*update, "--out", str(whole)], tmp_path / "said")
    seconds = moment("milvus", number) * (time.monotonic() - started)
    end_an_update(world, update, tmp_path, seconds, signal.SIGKILL, whole)


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_training_again_still_answers(
    world: World, tmp_path: Path, number: int, signal_: signal.Signals
) -> None:
    out, command = tmp_path / "adapt", [*UPDATE.split(), "--retrain", "--out", str(tmp_path / "adapt")]
    shutil.copytree(world.whole("adapt"), out)
    running = world.disturbed.launch({"argv": command}, tmp_path / "said")
    time.sleep(moment(f"retrain {signal_}", number) * world.seconds["adapt"])
    running.send(signal_)
    assert running.wait() <= {0, 130, -signal_}, running.text()
    assert list(Searcher(out).search("chapter 3 river", k=3))
    world.disturbed.run(command, tmp_path / "said")
    assert list(Searcher(out).search("chapter 3 river", k=3))
    assert (
        sum(path.name.startswith("index") for path in out.iterdir()) <= 2
    )  # the last one, and the one before
    assert files(world.disturbed.temporary) == []


def end_an_update(
    world: World, update: list[str], tmp_path: Path, seconds: float, signal_: signal.Signals, whole: Path
) -> None:
    """The directory answers before and after, and ends in the same index as one that was left alone."""
    out = tmp_path / "adapt"
    shutil.copytree(world.whole("adapt"), out)
    running = world.disturbed.launch({"argv": [*update, "--out", str(out)]}, tmp_path / "said")
    time.sleep(seconds)
    running.send(signal_)
    assert running.wait() <= {0, 130, -signal_}, running.text()
    assert "Traceback" not in running.text()
    assert list(Searcher(out).search("chapter 3 river", k=3))
    world.disturbed.run([*update, "--out", str(out)], tmp_path / "said")
    assert made_by_adapt(out) == made_by_adapt(whole)
    assert files(out) == files(whole)
    assert files(world.disturbed.temporary) == []
