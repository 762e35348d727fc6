"""The training loop. It knows batches, losses by name, and vectors that may be contrasted; it names no method.

    for each step:  batch(step) → losses → gradients → sum over ranks → clip → AdamW

The batch, the dropout and the learning rate are functions of the step, so a checkpoint holds weights, optimiser
state and the step, and a resumed run ends in the same bits as one that was never interrupted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from qontext import log
from qontext.artifacts import Workdir
from qontext.engine import checkpoint
from qontext.engine.distributed import Group
from qontext.engine.interrupts import StopRequests
from qontext.engine.metrics import Metrics
from qontext.engine.optimizer import adamw
from qontext.engine.prefetch import Prefetched
from qontext.engine.settings import LoopSettings
from qontext.engine.stepper import Losses, Prepare, Stepper

__all__ = ["Batch", "LoopSettings", "Trainee", "train"]


class Batch(Protocol):
    """A rank's share of a step; `passages` is how many the whole step has."""

    @property
    def passages(self) -> int: ...


class Trainee(Protocol):
    """What the loop trains: a module that gives `losses` and, if something is contrasted, `vectors`.

    A micro-batch has a `seed`, which fixes its dropout.
    """

    contrastive: bool

    def __call__(self, micro: Any) -> Any: ...
    def represent(self, micro: Any) -> Tensor: ...
    def contrast(self, vectors: Tensor, keys: Any, rows: slice) -> Losses: ...


def train(
    trainee: Any,
    batch_of: Callable[[int], Batch],
    settings: LoopSettings,
    group: Group,
    work: Workdir,
    *,
    phase: str,
    prepare: Prepare,
    every: Callable[[int], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Train `trainee` for the steps that are left; gives a summary.

    `phase` names this training among several in one directory. `prepare(batch, group)` gives the micro-batches on
    their device, and the keys that `contrast` knows the rows of all ranks by; `every(step)` is called after each
    step and may return values to write down. With `stop` true among them the training ends there; every rank has
    to say so.
    """
    optimizer = adamw(trainee, settings.lr, settings.weight_decay)
    folder = f"checkpoints/{phase}"
    state = checkpoint.load(work, folder, trainee, optimizer) or {"step": 0, "skipped": 0, "passages": 0}
    if state["step"] and group.is_first:
        log.note(f"{phase}: going on from step {state['step']:,} of {settings.steps:,}.")
    run = Stepper(trainee, optimizer, settings, group, prepare, state)
    metrics = Metrics(work, state["step"], settings.track, phase) if group.is_first else None
    saved = time.monotonic()
    # A run that stopped early and was killed before its end stays stopped.
    steps = state["step"] if state.get("stopped") else settings.steps

    def save(done: int, *, stopped: bool = False) -> None:
        if group.is_first:
            checkpoint.save(work, folder, trainee, optimizer, {**run.state(done), "stopped": stopped})
        group.wait()

    trainee.train()
    with (
        _progress(phase, settings.steps, group) as advance,
        StopRequests() as stop,
        Prefetched(batch_of, state["step"], steps) as batches,
    ):
        advance(state["step"])
        for step, batch in batches:
            run.step(step, batch)
            done, last = step + 1, step + 1 == steps
            if done % settings.log_every == 0 or last:
                values = run.report(done)
                if metrics is not None:
                    metrics.write(done, values)
                advance(0, _told(values))
            advance(1)
            more = every(done) if every else {}
            if more and metrics is not None:
                metrics.write(done, more)
            stopped = bool(more.get("stop"))
            if last or stopped:
                save(done, stopped=stopped)
                break
            stopping = group.any(stop.requested)
            due = time.monotonic() - saved > 60 * settings.checkpoint_minutes
            if stopping or group.any(due):
                save(done)
                saved = time.monotonic()
            if stopping:
                log.note(f"{phase}: saved at step {done:,}; the same command goes on from there.")
                raise KeyboardInterrupt
    trainee.eval()
    return run.summary()


def _progress(phase: str, steps: int, group: Group) -> contextlib.AbstractContextManager[Callable[..., None]]:
    """The first rank's progress bar; the others are silent."""
    if group.is_first:
        return log.progress(phase, steps, "steps")
    return contextlib.nullcontext(lambda amount, said="": None)


def _told(values: dict[str, Any]) -> str:
    losses = "  ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in values["losses"].items())
    return f"{losses}  {values['passages_per_second']:,.0f} passages/s"
