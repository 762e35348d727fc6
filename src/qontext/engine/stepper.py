"""One training after the other steps: gradients, their sum over ranks, clipping, AdamW, and what to report.

Nothing here waits for a GPU: losses, norms and counters stay on the device and are read back when they are reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qontext.engine import gradient_cache
from qontext.engine.distributed import Group
from qontext.engine.dropout import use_cheap_dropout
from qontext.engine.memory import return_freed_memory
from qontext.engine.optimizer import learning_rate
from qontext.engine.precision import autocast
from qontext.engine.settings import LoopSettings
from qontext.errors import QontextError

Losses = dict[str, Tensor]
Prepare = Callable[[Any, Group], tuple[Sequence[Any], Any]]
CACHE_ABOVE = 8
BAD_STEPS = 10


class Stepper:
    """The state of one training: everything that a step changes."""

    def __init__(
        self,
        trainee: Any,
        optimizer: torch.optim.Optimizer,
        settings: LoopSettings,
        group: Group,
        prepare: Prepare,
        state: dict[str, Any],
    ) -> None:
        self.trainee, self.optimizer, self.settings, self.group = trainee, optimizer, settings, group
        self.prepare = prepare
        if group.device.type == "cpu":
            use_cheap_dropout(trainee)
        self.scaler = torch.amp.GradScaler(group.device.type, enabled=settings.dtype == torch.float16)
        if state.get("scaler"):
            self.scaler.load_state_dict(state["scaler"])
        # On the device, so that no step waits for the host: read back every few steps.
        self.skipped = torch.tensor(float(state["skipped"]), device=group.device)
        self.bad_in_a_row = torch.zeros((), device=group.device)
        self.totals: Losses = {}
        self.norm = torch.zeros((), device=group.device)
        self.steps = self.passages = 0
        self.all_passages = state["passages"]
        self.last_losses: dict[str, float] = state.get("losses", {})
        self.started = self.reported = time.monotonic()

    def step(self, step: int, batch: Any) -> None:
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
            if self.optimizer.defaults["fused"]:
                # The fused optimiser leaves weights and moments alone where this is 1.
                self.optimizer.found_inf = bad  # type: ignore[attr-defined]
            elif bad:
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

    def _gradients(self, batch: Any) -> Losses:
        micro, keys = self.prepare(batch, self.group)
        if not self.trainee.contrastive:
            total: Losses = {}
            for one in micro:
                losses, _ = self._forward(one)
                self.scaler.scale(torch.stack(list(losses.values())).sum()).backward()
                total = {name: total.get(name, 0) + loss.detach() for name, loss in losses.items()}
            return total
        cache = self.settings.gradient_cache
        many = len(micro) > CACHE_ABOVE
        cached = cache == "on" or (cache == "auto" and many)
        # New pages cost a sixth of a step: a few micro-batches leave no holes that would be worth it.
        tidies = many and self.group.device.type == "cpu"
        return gradient_cache.backward(
            micro,
            self._forward,
            self._represent,
            lambda vectors, rows: self.trainee.contrast(vectors, keys, rows),
            self.group,
            cached=cached,
            scale=self.scaler.scale,
            between=return_freed_memory if tidies else lambda: None,
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
            "scaler": self.scaler.state_dict(),
        }

    def summary(self) -> dict[str, Any]:
        if not all(bool(torch.isfinite(p).all()) for p in self.trainee.parameters()):
            raise QontextError("the weights are not finite numbers any more", remedy="Lower --lr.")
        seconds = time.monotonic() - self.started
        return {
            "losses": self.last_losses,
            "passages seen": self.all_passages,
            "steps skipped": int(self.skipped.item()),
            "seconds": round(seconds, 1),
        }
