"""What the training loop can be told."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LoopSettings:
    """`dtype` is the format of the matrix products; `gradient_cache` is "auto", "on" or "off"."""

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
