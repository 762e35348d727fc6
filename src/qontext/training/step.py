"""One step of a training, in the order in which it happens."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from qontext.frame.errors import QontextError
from qontext.models.precision import autocast
from qontext.models.prediction import weights_do_not_change
from qontext.training import gradient_cache
from qontext.training.batch import Batch, Losses, Rows, TrainableModel, check, prepare
from qontext.training.counters import Counters
from qontext.training.distributed import Group
from qontext.training.dropout import drawn_for, use_cheap_dropout
from qontext.training.memory import keep_freed_memory, out_of_memory_as_sentence, return_freed_memory
from qontext.training.optimizer import Optimizer

Cache = Literal["auto", "on", "off"]
CACHE_ABOVE = 8
BAD_STEPS = 10
FRESH = {"step": 0, "skipped": 0, "passages": 0}
"""The initial state of a training."""


class Stepper:
    """A model, its optimizer and its counters: everything that a step changes."""

    def __init__(
        self,
        model: TrainableModel,
        optimizer: Optimizer,
        group: Group,
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

    def step(self, step: int, batch: Batch) -> None:
        self.optimizer.set_rate(step)
        self.model.progress = step / self.optimizer.steps
        with out_of_memory_as_sentence(step + 1):
            losses = self.backward(batch)
            self.group.sum_gradients(self.model)
        norm = self.optimizer.step()
        self.counters.add(losses, norm, batch.passages)

    def backward(self, batch: Batch) -> Losses:
        """Accumulate the gradients of this rank's share; returns its share of the losses."""
        micro, keys = prepare(batch, self.group)
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

    def summary(self) -> dict[str, Any]:
        if not all(bool(torch.isfinite(p).all()) for p in self.model.parameters()):
            raise QontextError("the weights are no longer finite", remedy="Lower --lr.")
        return {
            "losses": self.counters.last_losses,
            "passages_seen": self.counters.passages_in_all,
            "steps_skipped": int(self.optimizer.skipped.item()),
            "seconds": self.counters.seconds(),
        }
