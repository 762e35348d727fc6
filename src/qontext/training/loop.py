"""The training loop. It handles batches, named losses and vectors for contrastive losses; it knows no method.

    for each step:  batch(step) → losses → gradients → sum over ranks → clip → AdamW

The batch, the dropout and the learning rate are functions of the step, so a checkpoint holds weights, optimizer
state and the step, and a resumed run ends with the same bits as an uninterrupted one. With a time limit, the learning
rate is a function of the time, too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.process import StopRequests
from qontext.models.precision import resolve_precision, settle_precision
from qontext.training import checkpoint
from qontext.training.batch import Batch, TrainableModel
from qontext.training.config import TrainingConfig
from qontext.training.distributed import RankGroup
from qontext.training.evaluation import Evaluations
from qontext.training.metrics import Metrics
from qontext.training.optimizer import Optimizer
from qontext.training.step import FRESH, Cache, Stepper, recompute_layers

Plan = Callable[[int], Batch]
"""A step → this rank's part of its batch."""
B = TypeVar("B")


def train(
    model: TrainableModel,
    plan: Plan,
    config: TrainingConfig,
    group: RankGroup,
    work: Workdir,
    *,
    steps: int,
    phase: str,
    cache: Cache = "off",
    evaluations: Evaluations | None = None,
    after_step: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Train `model` for the remaining steps; returns a summary.

    `phase` names this training among several in one directory. With `cache`, contrastive gradients are
    computed in two passes. `evaluations` run during training, and may stop it; `after_step` gets the steps done.
    """
    if config.activation_checkpointing:
        recompute_layers(model, draws_by_rows=group.device.type == "cpu")
    run, state = _resume(model, config, group, work, steps, phase, cache)
    done = int(state["step"])
    clock = _Clock(config.minutes, steps, group, work.opened - state.get("elapsed", 0.0))
    metrics = Metrics(work, done, config.track, phase) if group.is_first else None
    saved = time.monotonic()
    # A run that stopped early and was killed before it finished remains stopped.
    end = done if state.get("stopped") else steps

    model.train()
    with (
        _progress(phase, steps, group, done) as advance,
        StopRequests() as stop,
        Prefetched(_pinned(plan, group), done, end) as batches,
    ):
        for step, batch in batches:
            run.step(step, batch, clock.place(step))
            done = step + 1
            is_over = clock.place(done) >= steps
            if done % config.log_every == 0 or is_over:
                advance(0, _reported(run, done, metrics))
            advance(1)
            after_step(done)
            stopped = evaluations is not None and evaluations.after(done, metrics, is_last=is_over)
            interrupted = group.any(stop.requested)
            due = time.monotonic() - saved > 60 * config.checkpoint_minutes
            if is_over or stopped or interrupted or group.any(due):
                ends = {"stopped": is_over or stopped, "elapsed": clock.elapsed()}
                _save(run, work, phase, {**run.state(done), **ends})
                saved = time.monotonic()
            if interrupted:
                log.note(f"{phase}: saved at step {done:,}; run the same command again to resume.")
                raise KeyboardInterrupt
            if is_over or stopped:
                break
    run.finish()
    if metrics is not None:
        metrics.close()
    limited = {"steps": done} if config.minutes else {}
    return run.summary() | limited | (evaluations.finish() if evaluations else {})


def _reported(run: Stepper, done: int, metrics: Metrics | None) -> str:
    """Write the values since the last report, and return them as text for the progress bar."""
    values = run.report(done)
    if metrics is not None:
        metrics.write(done, values)
    return _in_words(values)


def _resume(
    model: TrainableModel,
    config: TrainingConfig,
    group: RankGroup,
    work: Workdir,
    steps: int,
    phase: str,
    cache: Cache,
) -> tuple[Stepper, Mapping[str, Any]]:
    """The training and state from its newest checkpoint, or new ones."""
    dtype = resolve_precision(settle_precision(work, config.precision, group.device), group.device)
    optimizer = Optimizer(model, config, steps, dtype, group.device)
    state = checkpoint.load(work, f"checkpoints/{phase}", model, optimizer.adamw) or FRESH
    if state["step"] and group.is_first:
        log.note(f"{phase}: resuming at step {state['step']:,} of {steps:,}.")
    return Stepper(model, optimizer, group, dtype, cache=cache, state=state), state


class _Clock:
    """The place of a step in the learning-rate schedule of `steps` steps: its number, or with a time limit, the share of
    the time if that is larger. The first rank's clock counts."""

    def __init__(self, minutes: float | None, steps: int, group: RankGroup, started: float) -> None:
        self.minutes, self.steps, self.group, self.started = minutes, steps, group, started

    def elapsed(self) -> float:
        """Seconds since the stage began to work, without interruptions."""
        return round(time.monotonic() - self.started, 3)

    def place(self, step: int) -> int:
        if self.minutes is None:
            return step
        place = int(self.steps * self.elapsed() / (60 * self.minutes))
        return max(step, self.group.of_first(min(place, self.steps)))


def _save(run: Stepper, work: Workdir, phase: str, state: dict[str, Any]) -> None:
    """Write a checkpoint on rank 0; the others wait."""
    if run.group.is_first:
        checkpoint.save(work, f"checkpoints/{phase}", run.model, run.optimizer.adamw, state)
    run.group.wait()


def _pinned(plan: Plan, group: RankGroup) -> Plan:
    """For a GPU, batches in page-locked memory."""
    return (lambda step: plan(step).pin()) if group.device.type == "cuda" else plan


def _progress(
    phase: str, steps: int, group: RankGroup, done: int
) -> contextlib.AbstractContextManager[Callable[..., None]]:
    """A progress bar on rank 0 only."""
    if group.is_first:
        return log.progress(phase, steps, "steps", earlier=done)
    return contextlib.nullcontext(lambda amount, suffix="", total=None: None)


def _in_words(values: dict[str, Any]) -> str:
    losses = "  ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in values["losses"].items())
    return f"{losses}  {values['passages_per_second']:,.0f} passages/s"


class Prefetched(Generic[B]):
    """(step, batch) pairs, each prepared in a thread while the previous one is computed."""

    def __init__(self, batch_of: Callable[[int], B], first: int, last: int) -> None:
        self.batch_of, self.first, self.last = batch_of, first, last

    def __enter__(self) -> Iterator[tuple[int, B]]:
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        return self._batches()

    def _batches(self) -> Iterator[tuple[int, B]]:
        coming = [
            self.pool.submit(self.batch_of, step)
            for step in range(self.first, min(self.first + 2, self.last))
        ]
        for step in range(self.first, self.last):
            batch = coming.pop(0).result()
            if step + 2 < self.last:
                coming.append(self.pool.submit(self.batch_of, step + 2))
            yield step, batch

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)
