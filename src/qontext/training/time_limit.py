"""A training that ends on time: the number of its steps is revised while it runs.

    last = done + (limit - elapsed) / step - after        step: the median of the last steps, in seconds

`elapsed` includes the work before the training, and `after` is the work that follows, in steps. Batches and dropout do
not depend on the number of steps; the learning rate does. So every revision is recorded beside the checkpoints before it
applies, and repeated by a run that resumes, which therefore ends with the same bits.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveInt
from typing_extensions import TypedDict

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.files import read_json
from qontext.training.distributed import RankGroup

MEASURED, FEWEST_MEASURED = 9, 5
"""The maximum and minimum number of steps that are timed."""
TOLERANCE = 0.03
"""Share of the limit by which a training may miss it before its steps are revised."""
WORTH_ANNOUNCING = 0.1
"""Share of the steps that a revision, or several, must add or remove to be announced."""


class Revision(TypedDict):
    """After `step` steps, there are `steps` in all."""

    step: NonNegativeInt
    steps: PositiveInt


@dataclass(frozen=True)
class TimeLimit:
    """Seconds for all work, of which `before` were spent before the training; `after` is what follows, in steps of the
    training. `most` is the largest number of steps."""

    seconds: float
    most: int
    before: float = 0.0
    after: int = 0


class StepEstimate:
    """The number of steps: `last`, which `revise` changes. Without a limit it stays."""

    def __init__(
        self,
        steps: int,
        limit: TimeLimit | None,
        *,
        elapsed: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.last, self.limit, self.clock = steps, limit, clock
        self.most = max(steps, limit.most) if limit else steps
        self.started, self.now = clock() - elapsed, clock()
        self.seconds: deque[float] = deque(maxlen=MEASURED)
        self.is_first = True
        self.step = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the stage began to work, without interruptions."""
        return self.now - self.started

    def revise(self, done: int) -> bool:
        """Called after each step; returns True if `last` has changed."""
        before, self.now = self.now, self.clock()
        if not self.is_first:  # the first step includes one-time costs
            self.seconds.append(self.now - before)
        self.is_first = False
        if self.limit is None or len(self.seconds) < FEWEST_MEASURED or done >= self.last:
            return False
        self.step = step = statistics.median(self.seconds)
        left = self.limit.seconds - self.limit.before - self.elapsed
        missed = left - (self.last - done + self.limit.after) * step
        if abs(missed) <= TOLERANCE * self.limit.seconds:
            return False
        earlier = self.last
        self.last = min(self.most, max(done + 1, done + int(left / step) - self.limit.after))
        return self.last != earlier


class RevisedSteps:
    """The number of steps of a training in a directory: the first rank revises it, all ranks follow, and a resumed run
    repeats the revisions."""

    def __init__(
        self, estimate: StepEstimate, group: RankGroup, work: Workdir, phase: str, done: int
    ) -> None:
        self.estimate, self.group, self.work, self.phase = estimate, group, work, phase
        self.file = f"checkpoints/{phase}/revisions.json"
        path = work.path / self.file
        self.revisions: list[Revision] = read_json(path, list[Revision]) if path.exists() else []
        for revision in self.revisions:
            if revision["step"] <= done:
                estimate.last = revision["steps"]
        self.announced = estimate.last

    @property
    def last(self) -> int:
        """The number of steps, as far as is known."""
        return self.estimate.last

    def end(self, done: int) -> int:
        """The step up to which batches may be needed."""
        return self.estimate.most if done < self.last else done

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"elapsed": round(self.estimate.elapsed, 3)} if self.estimate.limit else {}

    def summary(self) -> dict[str, Any]:
        return {"steps": self.last} if self.revisions else {}

    def after(self, done: int) -> bool:
        """Called on all ranks after each step; returns True if the number of steps has changed."""
        if self.estimate.limit is None:
            return False
        if self.group.device.type == "cuda":
            torch.cuda.synchronize(self.group.device)
        earlier = self.last
        revised = self.estimate.revise(done)
        if self.revisions and done <= self.revisions[-1]["step"]:  # a repeated part of an interrupted run
            recorded = [revision["steps"] for revision in self.revisions if revision["step"] == done]
            self.estimate.last = recorded[0] if recorded else earlier
            return bool(recorded)
        if not self.group.any(revised and self.group.is_first):
            self.estimate.last = earlier
            return False
        self.estimate.last = self.group.of_first(self.estimate.last)
        self.revisions.append({"step": done, "steps": self.last})
        if self.group.is_first:
            self.work.write_json(self.file, self.revisions)
            self._announce()
        return True

    def _announce(self) -> None:
        """Say how many steps there are now, where it makes a difference to a person."""
        if abs(self.last - self.announced) > WORTH_ANNOUNCING * self.announced:
            log.note(
                f"{self.phase}: {self.last:,} steps instead of {self.announced:,}, to end on time. "
                f"A step takes {self.estimate.step:.2g} s."
            )
            self.announced = self.last
