"""A training with a time limit: revisions of its steps, recorded and repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qontext.frame.artifacts import Workdir
from qontext.training.distributed import RankGroup
from qontext.training.time_limit import RevisedSteps, StepEstimate, TimeLimit


class Clock:
    """A clock that is advanced by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(revised: RevisedSteps, clock: Clock, seconds: list[float], done: int = 0) -> int:
    """Steps of these durations, the last one repeated, until the training ends; returns the number of steps."""
    while done < revised.last:
        clock.now += seconds[min(done, len(seconds) - 1)]
        done += 1
        revised.after(done)
    return done


def revised_steps(
    folder: Path, clock: Clock, limit: TimeLimit | None, done: int = 0, steps: int = 100
) -> RevisedSteps:
    return RevisedSteps(
        StepEstimate(steps, limit, clock=clock),
        RankGroup(0, 1, torch.device("cpu")),
        Workdir(folder),
        "p",
        done,
    )


@pytest.mark.parametrize(("step", "steps"), [(1.0, 100), (1.02, 100), (2.0, 50), (4.0, 25), (0.5, 150)])
def test_the_number_of_steps_follows_from_their_duration(tmp_path: Path, step: float, steps: int) -> None:
    """100 seconds for 100 steps; at most 150."""
    clock = Clock()
    revised = revised_steps(tmp_path, clock, TimeLimit(100.0, 150))
    assert abs(run(revised, clock, [step]) - steps) <= 1
    assert (tmp_path / "checkpoints/p/revisions.json").exists() == (steps != 100)


def test_work_before_and_after_is_part_of_the_limit(tmp_path: Path) -> None:
    clock = Clock()
    revised = revised_steps(tmp_path, clock, TimeLimit(200.0, 100, before=40.0, after=60))
    assert run(revised, clock, [2.0]) == 20, "(200 − 40) / 2 − 60"


def test_without_a_limit_nothing_is_revised(tmp_path: Path) -> None:
    assert run(revised_steps(tmp_path, Clock(), None), Clock(), [50.0]) == 100 and not [*tmp_path.iterdir()]


def test_single_slow_steps_do_not_count(tmp_path: Path) -> None:
    clock = Clock()
    assert (
        run(revised_steps(tmp_path, clock, TimeLimit(125.0, 100)), clock, [9.0, *[1.0] * 20, 9.0, 1.0]) == 100
    )


def test_a_run_that_resumes_repeats_the_revisions_whatever_its_speed(tmp_path: Path) -> None:
    clock = Clock()
    whole = revised_steps(tmp_path, clock, TimeLimit(100.0, 100))
    run(whole, clock, [1.0] * 30 + [3.0])
    recorded = list(whole.revisions)
    assert recorded and 30 < recorded[0]["step"] < 45 and whole.last < 60
    # Killed after the last revision; the checkpoint is of step 20, and the machine is much faster now.
    resumed = revised_steps(tmp_path, clock := Clock(), TimeLimit(100.0, 100), done=20)
    assert resumed.last == 100
    lasts = {}
    for done in range(21, recorded[-1]["step"] + 1):
        clock.now += 0.1
        resumed.after(done)
        lasts[done] = resumed.last
    assert [(r["step"], r["steps"]) for r in recorded] == [
        (done, last) for done, last in lasts.items() if last != lasts.get(done - 1, 100)
    ]
    # After that, it revises by itself.
    assert run(resumed, clock, [0.1], done) == 100
    # From a checkpoint after the revisions, they apply at once.
    assert revised_steps(tmp_path, Clock(), TimeLimit(100.0, 100), done=99).last == resumed.last


def test_only_revisions_that_matter_to_a_person_are_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose speed varies by a twentieth revises often, and says nothing; one that slows down says it once."""
    said = list[str]()
    monkeypatch.setattr("qontext.frame.log.note", said.append)
    clock = Clock()
    revised = revised_steps(tmp_path / "even", clock, TimeLimit(100, 1_000))
    run(revised, clock, [1.05, 1.05, 0.95, 0.95] * 20)
    assert revised.revisions and not said
    revised = revised_steps(tmp_path / "slow", clock, TimeLimit(100, 1_000))
    run(revised, clock, [2.0] * 100)
    assert len(said) == 1 and said[0].startswith(
        "p: 50 steps instead of 100, to end on time. A step takes 2 s"
    )
