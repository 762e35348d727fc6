"""The training loop. It knows batches, losses by name, and vectors that may be contrasted; it names no method.

    for each step:  batch(step) → losses → gradients → sum over ranks → clip → AdamW

The batch, the dropout and the learning rate are functions of the step, so a checkpoint holds weights, optimiser
state and the step, and a resumed run ends in the same bits as one that was never interrupted.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from qontext import log
from qontext.artifacts import Workdir
from qontext.engine import checkpoint, gradient_cache
from qontext.engine.distributed import Group
from qontext.engine.metrics import Metrics
from qontext.engine.optimizer import adamw, learning_rate
from qontext.engine.precision import autocast
from qontext.errors import QontextError

Losses = dict[str, Tensor]
CACHE_ABOVE = 8
BAD_STEPS = 10


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


@dataclass(frozen=True)
class LoopSettings:
    steps: int
    lr: float
    warmup: float
    schedule: str
    weight_decay: float
    clip: float
    dtype: torch.dtype
    gradient_cache: str
    checkpoint_minutes: float
    log_every: int
    track: str = "none"


def train(
    trainee: Any,
    batch_of: Callable[[int], Batch],
    settings: LoopSettings,
    group: Group,
    work: Workdir,
    *,
    phase: str,
    prepare: Callable[[Any, Group], tuple[Sequence[Any], Any]],
    every: Callable[[int], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Train `trainee` for the steps that are left; gives a summary.

    `phase` names this training among several in one directory. `prepare(batch, group)` gives the micro-batches on
    their device, and the keys that `contrast` knows the rows of all ranks by; `every(step)` is called after each
    step and may return values to write down.
    """
    optimizer = adamw(trainee, settings.lr, settings.weight_decay)
    folder = f"checkpoints/{phase}"
    state = checkpoint.load(work, folder, trainee, optimizer) or {"step": 0, "skipped": 0, "passages": 0}
    if state["step"] and group.is_first:
        log.note(f"{phase}: going on from step {state['step']:,} of {settings.steps:,}.")
    run = _Run(trainee, optimizer, settings, group, prepare, state)
    metrics = Metrics(work, state["step"], settings.track, phase) if group.is_first else None
    saved = time.monotonic()

    def save(done: int) -> None:
        if group.is_first:
            checkpoint.save(work, folder, trainee, optimizer, run.state(done))
        group.wait()

    trainee.train()
    with (
        log.progress(phase, settings.steps, "steps") if group.is_first else _silence() as advance,
        _stop_signal() as stop,
        _prefetched(batch_of, state["step"], settings.steps) as batches,
    ):
        advance(state["step"])
        for step, batch in batches:
            run.step(step, batch)
            done, last = step + 1, step + 1 == settings.steps
            if done % settings.log_every == 0 or last:
                values = run.report(done)
                if metrics is not None:
                    metrics.write(done, values)
                advance(0, _told(values))
            advance(1)
            more = every(done) if every else {}
            if more and metrics is not None:
                metrics.write(done, more)
            if last:
                save(done)
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


class _Run:
    """The state of one training: everything that a step changes."""

    def __init__(
        self,
        trainee: Any,
        optimizer: torch.optim.Optimizer,
        settings: LoopSettings,
        group: Group,
        prepare: Callable[[Any, Group], tuple[Sequence[Any], Any]],
        state: dict[str, Any],
    ) -> None:
        self.trainee, self.optimizer, self.settings, self.group = trainee, optimizer, settings, group
        self.prepare = prepare
        self.scaler = torch.amp.GradScaler(group.device.type, enabled=settings.dtype == torch.float16)
        # On the device, so that no step waits for the host: read back every few steps.
        self.skipped = torch.tensor(float(state["skipped"]), device=group.device)
        self.bad_in_a_row = torch.zeros((), device=group.device)
        self.totals: Losses = {}
        self.norm = torch.zeros((), device=group.device)
        self.steps = self.passages = 0
        self.all_passages = state["passages"]
        self.last_losses: dict[str, float] = state.get("losses", {})
        self.started = self.reported = time.monotonic()

    def step(self, step: int, batch: Batch) -> None:
        s = self.settings
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = learning_rate(step, s.steps, s.lr, s.warmup, s.schedule)
        try:
            losses = self._gradients(batch)
            self.group.sum_gradients(self.trainee)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not isinstance(error, RuntimeError) or "memory" in str(error).lower():
                raise QontextError(
                    f"out of memory at step {step + 1}",
                    remedy="Lower --micro-tokens (what is computed at a time), or --batch-size, or set "
                    "--gradient-cache on. The run resumes from its last checkpoint.",
                ) from None
            raise
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.trainee.parameters(), s.clip)
        bad = (~torch.isfinite(norm)).float()
        if self.scaler.is_enabled():
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            # The fused optimiser leaves weights and moments alone where this is 1.
            self.optimizer.found_inf = bad  # type: ignore[attr-defined]
            if norm.device.type not in ("cpu", "cuda") and bad:
                self.optimizer.zero_grad()
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.skipped += bad
        self.bad_in_a_row = (self.bad_in_a_row + bad) * bad
        for name, loss in losses.items():
            self.totals[name] = self.totals.get(name, 0) + torch.nan_to_num(loss.float())
        self.norm += torch.nan_to_num(norm, nan=0.0, posinf=0.0)
        self.steps += 1
        self.passages += batch.passages
        self.all_passages += batch.passages

    def _gradients(self, batch: Batch) -> Losses:
        micro, keys = self.prepare(batch, self.group)
        if not self.trainee.contrastive:
            total: Losses = {}
            for one in micro:
                losses, _ = self._forward(one)
                self.scaler.scale(torch.stack(list(losses.values())).sum()).backward()
                total = {name: total.get(name, 0) + loss.detach() for name, loss in losses.items()}
            return total
        cache = self.settings.gradient_cache
        return gradient_cache.backward(
            micro,
            self._forward,
            self._represent,
            lambda vectors, rows: self.trainee.contrast(vectors, keys, rows),
            self.group,
            cached=cache == "on" or (cache == "auto" and len(micro) > CACHE_ABOVE),
            scale=self.scaler.scale,
        )

    def _forward(self, micro: Any) -> tuple[Losses, Tensor]:
        torch.manual_seed(micro.seed)
        with autocast(self.group.device, self.settings.dtype):
            output = self.trainee(micro)
        return output.losses, output.vectors

    def _represent(self, micro: Any) -> Tensor:
        torch.manual_seed(micro.seed)
        with autocast(self.group.device, self.settings.dtype):
            vectors: Tensor = self.trainee.represent(micro)
        return vectors

    def report(self, step: int) -> dict[str, Any]:
        """The means since the last report, read back from the device. Stops a run that has gone bad."""
        names = sorted(self.totals)
        sums = torch.stack([self.totals[name] for name in names]) / self.steps
        read = [*self.group.sum(sums).tolist(), *torch.stack([self.norm / self.steps, self.skipped]).tolist()]
        now = time.monotonic()
        elapsed, self.reported = now - self.reported, now
        self.last_losses = {name: round(value, 6) for name, value in zip(names, read)}
        values = {
            "losses": self.last_losses,
            "loss": round(sum(self.last_losses.values()), 6),
            "lr": self.optimizer.param_groups[0]["lr"],
            "gradient_norm": round(read[-2], 4),
            "skipped": int(read[-1]),
            "passages_per_second": round(self.passages / elapsed, 2),
            "seconds": round(now - self.started, 2),
        }
        if self.bad_in_a_row.item() >= BAD_STEPS:
            raise QontextError(
                f"the loss is not a finite number for {int(self.bad_in_a_row.item())} steps in a row, at step {step}",
                remedy="Lower --lr, or use --precision fp32. The weights of the last checkpoint are unharmed.",
            )
        self.totals, self.steps, self.passages = {}, 0, 0
        self.norm = torch.zeros_like(self.norm)
        return values

    def state(self, done: int) -> dict[str, Any]:
        return {
            "step": done,
            "skipped": int(self.skipped.item()),
            "passages": self.all_passages,
            "losses": self.last_losses,
        }

    def summary(self) -> dict[str, Any]:
        seconds = time.monotonic() - self.started
        return {
            "losses": self.last_losses,
            "passages seen": self.all_passages,
            "steps skipped": int(self.skipped.item()),
            "seconds": round(seconds, 1),
        }


class _StopFlag:
    requested = False


class _stop_signal:
    """While inside, SIGINT and SIGTERM set a flag, so that the step under way ends first. A second one is obeyed at once."""

    def __enter__(self) -> _StopFlag:
        self.flag, self.before = _StopFlag(), {}

        def request(number: int, frame: Any) -> None:
            if self.flag.requested:
                raise KeyboardInterrupt
            self.flag.requested = True
            log.note("Stopping after this step …")

        if threading.current_thread() is threading.main_thread():  # signals go nowhere else
            self.before = {
                number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self.flag

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


class _silence:
    def __enter__(self) -> Callable[..., None]:
        return lambda amount, said="": None

    def __exit__(self, *error: object) -> None:
        pass


class _prefetched:
    """Batches with their steps, each prepared in a thread while the one before it is computed."""

    def __init__(self, batch_of: Callable[[int], Batch], first: int, last: int) -> None:
        self.batch_of, self.first, self.last = batch_of, first, last

    def __enter__(self) -> Iterator[tuple[int, Batch]]:
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        return self._batches()

    def _batches(self) -> Iterator[tuple[int, Batch]]:
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


def _told(values: dict[str, Any]) -> str:
    losses = "  ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in values["losses"].items())
    return f"{losses}  {values['passages_per_second']:,.0f} passages/s"
