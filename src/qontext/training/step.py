"""One step of a training, in the order in which it happens.

glibc returns large freed blocks to the system at once; the next allocation then has to fetch and clear every page again,
which takes a fifth of a training step. During training, freed memory is therefore kept for later allocations.
Micro-batches of many shapes fragment it, so that the process grows with the number of micro-batches although only one is
in memory at a time: between them, it is returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qontext.frame.errors import QontextError
from qontext.models.precision import autocast
from qontext.models.prediction import weights_do_not_change
from qontext.training import gradient_cache
from qontext.training.batch import Batch, Losses, Rows, TrainableModel, check, prepare
from qontext.training.distributed import RankGroup
from qontext.training.dropout import drawn_again, drawn_for, use_cheap_dropout
from qontext.training.optimizer import Optimizer

Cache = Literal["auto", "on", "off"]
CACHE_ABOVE = 8
BAD_STEPS = 10
FRESH = {"step": 0, "skipped": 0, "passages": 0}
"""The initial state of a training."""

# Numbers of the settings in glibc's malloc.h.
_MMAP_MAX, _TRIM_THRESHOLD, _LARGEST = -4, -1, 2**31 - 1

_OUT_OF_MEMORY = re.compile(
    "out of memory|not enough memory|(can't|cannot|failed to) allocate memory", re.IGNORECASE
)
"""The messages of PyTorch and of drivers; an illegal memory access is none."""


class Stepper:
    """A model, its optimizer and its counters: everything that a step changes."""

    def __init__(
        self,
        model: TrainableModel,
        optimizer: Optimizer,
        group: RankGroup,
        dtype: torch.dtype,
        *,
        cache: Cache = "off",
        state: Mapping[str, Any] = FRESH,
    ) -> None:
        self.model, self.optimizer, self.group, self.dtype, self.cache = model, optimizer, group, dtype, cache
        self.counters = Counters(group, state)
        optimizer.load(state)
        if group.device.type == "cpu":
            keep_freed_memory()
            use_cheap_dropout(model)

    def step(self, step: int, batch: Batch, place: int | None = None) -> None:
        """`place` is the step's in the schedule, if time is limited."""
        place = step if place is None else place
        self.optimizer.set_rate(place)
        self.model.progress = place / self.optimizer.steps
        with out_of_memory_as_sentence(step + 1):
            losses = self.backward(batch)
            self.group.sum_gradients(self.model)
        norm = self.optimizer.step()
        self.counters.add(losses, norm, batch.passages)

    def backward(self, batch: Batch) -> Losses:
        """Accumulate the gradients of this rank's share; returns its share of the losses."""
        micro, keys = prepare(batch, self.group)
        self.model.batch_rows = self.group.total(batch.rows)
        with weights_do_not_change():
            if not self.model.contrastive:
                return self._backward(micro)
            # Micro-batches that are back-propagated together share the weights that autocast rounds.
            shared = contextlib.nullcontext() if self._cached(micro) else self._autocast()
            with shared:
                return self._backward_contrasted(micro, keys)

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        return autocast(self.group.device, self.dtype)

    def _cached(self, micro: list[Rows]) -> bool:
        return self.cache == "on" or (self.cache == "auto" and len(micro) > CACHE_ABOVE)

    def _backward(self, micro: list[Rows]) -> Losses:
        total: Losses = {}
        for rows in micro:
            losses, _ = self._forward(rows)
            self.optimizer.scale(torch.stack(list(losses.values())).sum()).backward()
            total = {name: total.get(name, 0) + loss.detach() for name, loss in losses.items()}
        return total

    def _backward_contrasted(self, micro: list[Rows], keys: Any) -> Losses:
        many = len(micro) > CACHE_ABOVE
        # New pages cost a sixth of a step: not worth it for a few micro-batches.
        tidy = many and self.group.device.type == "cpu"
        return gradient_cache.backward(
            micro,
            self._forward,
            self._represent,
            lambda vectors, rows: self._contrast(vectors, keys, rows),
            self.group,
            cached=self._cached(micro),
            scale=self.optimizer.scale,
            between=return_freed_memory if tidy else lambda: None,
        )

    def _forward(self, rows: Rows) -> tuple[Losses, Any]:
        with drawn_for(rows.row_keys), self._autocast():
            output = check(self.model(rows), self.model)
        return output.losses, output.vectors

    def _represent(self, rows: Rows) -> Tensor:
        with drawn_for(rows.row_keys), self._autocast():
            return self.model.represent(rows)

    def _contrast(self, vectors: Tensor, keys: Any, rows: slice) -> Losses:
        with autocast(self.group.device, torch.float32):
            return self.model.contrast(vectors, keys, rows)

    def report(self, step: int) -> dict[str, Any]:
        """The means since the last report. Stops a training whose losses are not finite."""
        values = self.counters.report(self.optimizer.skipped) | {"lr": self.optimizer.lr}
        bad = int(self.optimizer.skipped_in_a_row.item())
        if bad >= BAD_STEPS:
            raise QontextError(
                f"the loss is not a finite number for {bad} steps in a row, at step {step}",
                remedy="Lower --lr, or use --precision fp32. The last checkpoint is not affected.",
            )
        return values

    def state(self, done: int) -> dict[str, Any]:
        """The state for a checkpoint, besides weights and moments. All ranks call it."""
        return {"step": done, **self.optimizer.state(), **self.counters.state()}

    def finish(self) -> None:
        """Leave the model in evaluation mode."""
        self.model.eval()
        return_freed_memory()

    def summary(self) -> dict[str, Any]:
        if not all(bool(torch.isfinite(p).all()) for p in self.model.parameters()):
            raise QontextError("the weights are no longer finite", remedy="Lower --lr.")
        return {
            "losses": self.counters.last_losses,
            "passages_seen": self.counters.passages_in_all,
            "steps_skipped": int(self.optimizer.skipped.item()),
            "seconds": self.counters.seconds(),
        }


class Counters:
    """Sums of losses, the gradient norm and passages since the last report, and totals since the training began. The sums
    stay on the device and are read back when they are reported."""

    def __init__(self, group: RankGroup, state: Mapping[str, Any]) -> None:
        self.group = group
        window = state.get("window", {"steps": 0, "norm": 0.0, "losses": {}})
        # The saved sums are those over all ranks: after resuming, the first rank continues them.
        self.losses: Losses = {
            name: torch.tensor(total if group.is_first else 0.0, device=group.device)
            for name, total in window["losses"].items()
        }
        self.norm = torch.tensor(window["norm"], device=group.device)
        self.steps, self.passages = int(window["steps"]), 0
        self.passages_in_all = int(state["passages"])
        self.last_losses: dict[str, float] = state.get("losses", {})
        self.started = self.reported = time.monotonic()

    def add(self, losses: Losses, norm: Tensor, passages: int) -> None:
        for name, loss in losses.items():
            self.losses[name] = self.losses.get(name, 0) + torch.nan_to_num(loss.float())
        self.norm += torch.nan_to_num(norm, nan=0.0, posinf=0.0)
        self.steps += 1
        self.passages += passages
        self.passages_in_all += passages

    def report(self, skipped: Tensor) -> dict[str, Any]:
        """The means since the last report. All ranks call it: losses are summed over them."""
        names = sorted(self.losses)
        sums = torch.stack([self.losses[name] for name in names]) / self.steps
        read = [*self.group.sum(sums).tolist(), *torch.stack([self.norm / self.steps, skipped]).tolist()]
        now = time.monotonic()
        elapsed, self.reported = now - self.reported, now
        self.last_losses = {name: round(value, 6) for name, value in zip(names, read)}
        values = {
            "losses": self.last_losses,
            "loss": round(sum(self.last_losses.values()), 6),
            "gradient_norm": round(read[-2], 4),
            "skipped": int(read[-1]),
            "passages_per_second": round(self.passages / elapsed, 2),
            "seconds": round(now - self.started, 2),
        }
        self.losses, self.steps, self.passages = {}, 0, 0
        self.norm = torch.zeros_like(self.norm)
        return values

    def seconds(self) -> float:
        """Rates since this process started to train."""
        return round(time.monotonic() - self.started, 1)

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint. All ranks call it: losses are summed over them."""
        names = sorted(self.losses)
        sums = self.group.sum(torch.stack([self.losses[name] for name in names])).tolist() if names else []
        return {
            "window": {"steps": self.steps, "norm": self.norm.item(), "losses": dict(zip(names, sums))},
            "passages": self.passages_in_all,
            "losses": self.last_losses,
        }


@contextlib.contextmanager
def out_of_memory_as_sentence(step: int) -> Iterator[None]:
    """Raises a QontextError with the remedy if memory runs out inside."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_said = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not is_said and not _OUT_OF_MEMORY.search(str(error)):
            raise
        raise QontextError(
            f"out of memory at step {step}",
            remedy="Lower --micro-tokens (the token budget per micro-batch), or --batch-size, or set "
            "--gradient-cache on, or --activation-checkpointing. The run resumes from its last checkpoint.",
        ) from None


def recompute_layers(model: nn.Module, *, draws_by_rows: bool = True) -> None:
    """Keep only the inputs of a model's transformer layers for the backward pass, and compute each again there: activation
    checkpointing. The gradient is the same. Without `draws_by_rows`, dropout is PyTorch's own, as on a GPU."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    draws: dict[str, Any] = {"context_fn": drawn_again} if draws_by_rows else {}
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, **draws)


def keep_freed_memory() -> None:
    """Let this process keep the pages of freed memory; no effect if the C library is not glibc."""
    if (choose := _libc("mallopt")) is not None:
        choose(_MMAP_MAX, 0)
        choose(_TRIM_THRESHOLD, _LARGEST)


def return_freed_memory() -> bool:
    """Return the pages of freed memory to the system; returns True if there were any.

    Takes some hundredths of a second for gigabytes, and as much again when the memory is next used: suitable
    between micro-batches, not between operations.
    """
    trim = _libc("malloc_trim")
    return trim is not None and bool(trim(0))


@cache
def _libc(name: str) -> Callable[..., int] | None:
    """A function of glibc."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):  # not glibc
        return None
    return function
