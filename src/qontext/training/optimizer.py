"""AdamW with weight decay on matrices, a learning-rate schedule, clipping, and skipped steps.

A step with a non-finite gradient is skipped and counted. Norms and counters stay on the device, so that the
host never waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qontext.training.config import TrainingConfig


def adamw(module: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Weight decay for matrices only. Fused where the device has the kernel."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = trained[0].device.type in ("cpu", "cuda")
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, fused=fused)


def learning_rate(step: int, steps: int, peak: float, warmup: float, schedule: str) -> float:
    """Rises linearly over the first `warmup` share of the steps, then falls to 0 (linear, cosine) or stays."""
    rising = round(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    progress = (step - rising) / max(1, steps - rising)
    if schedule == "linear":
        return peak * (1 - progress)
    return peak * (1 + math.cos(math.pi * progress)) / 2 if schedule == "cosine" else peak


MOST_GRADIENT = 1.0
"""Maximum gradient norm."""


class Optimizer:
    """AdamW with schedule and clipping; `steps` is the length of the schedule, `dtype` the format of matrix
    products."""

    def __init__(
        self, module: nn.Module, config: TrainingConfig, steps: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.module, self.config, self.steps = module, config, steps
        self.adamw = adamw(module, config.lr, config.weight_decay)
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self.skipped = torch.zeros((), device=device)
        self.skipped_in_a_row = torch.zeros((), device=device)

    @property
    def lr(self) -> float:
        rate: float = self.adamw.param_groups[0]["lr"]
        return rate

    def set_rate(self, step: int) -> None:
        """The rate at a step of the schedule."""
        rate = learning_rate(step, self.steps, self.config.lr, self.config.warmup, self.config.schedule)
        for parameters in self.adamw.param_groups:
            parameters["lr"] = rate

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to back-propagate: scaled in fp16."""
        return self.scaler.scale(loss)

    def step(self) -> Tensor:
        """Clip the gradients, update the weights, clear the gradients; returns the gradient norm before clipping."""
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.adamw)
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), MOST_GRADIENT)
        skip = (~torch.isfinite(norm)).float()
        if self.scaler.is_enabled():
            self.scaler.step(self.adamw)
            self.scaler.update()
        else:
            if self.adamw.defaults["fused"]:
                # The fused kernel skips the update if this is 1.
                self.adamw.found_inf = skip  # type: ignore[attr-defined]
            elif skip:
                self.adamw.zero_grad()
            self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        self.skipped += skip
        self.skipped_in_a_row = (self.skipped_in_a_row + skip) * skip
        return norm

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, besides the moments."""
        return {"skipped": int(self.skipped.item()), "scaler": self.scaler.state_dict()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.skipped += float(state["skipped"])
        if state.get("scaler"):
            self.scaler.load_state_dict(state["scaler"])
