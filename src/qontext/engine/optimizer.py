"""AdamW with weight-decay groups, and the learning rate as a function of the step."""

from __future__ import annotations

import math

import torch
from torch import nn


def adamw(module: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Matrices decay; biases, norms and other vectors do not. Fused where the device has the kernel."""
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
