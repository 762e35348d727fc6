"""What can be set in every training: how long, how fast, in what numbers, on what machine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from qontext.config import Machine, StageConfig

if TYPE_CHECKING:
    from qontext.engine.settings import LoopSettings


class TrainingConfig(StageConfig):
    """Settings of any training that `engine.loop` does."""

    steps: int | None = Field(None, ge=1)
    """Optimiser steps. Default: what the epochs come to."""

    epochs: float
    batch_size: int
    lr: float
    # Each training has defaults of its own for these three.

    warmup: float = Field(0.1, ge=0, le=1)
    """Share of the steps in which the learning rate rises."""

    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate falls after the warm-up."""

    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of the matrices; biases and norms have none."""

    clip: float = Field(1.0, gt=0)
    """Longest gradient; a longer one is scaled down."""

    dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout rate of the encoder. Default: its own."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format of the matrix products. Auto: bf16 where the hardware has it."""

    seed: int = Field(42, ge=0, lt=2**63)
    """Seed of everything random."""

    micro_tokens: Annotated[int, Machine()] = Field(0, ge=0)
    """Tokens that are computed at a time. Lower it when memory runs out. 0: 8,192 on a CPU, 65,536 on a GPU."""

    device: Annotated[str, Machine()] = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""

    checkpoint_minutes: Annotated[float, Machine()] = Field(15.0, ge=0)
    """Minutes between checkpoints; a killed run loses at most that. 0: after every step."""

    log_every: Annotated[int, Machine()] = Field(20, ge=1)
    """Steps between two lines of metrics."""

    track: Annotated[Literal["none", "tensorboard", "trackio"], Machine()] = "none"
    """Also log to TensorBoard or trackio (extra: track)."""

    def tokens_at_a_time(self, device: Any) -> int:
        return self.micro_tokens or (65_536 if device.type == "cuda" else 8_192)

    def steps_over(self, examples: int) -> int:
        """The steps asked for, or what the epochs come to."""
        return self.steps or max(1, math.ceil(self.epochs * examples / self.batch_size))

    def loop(self, steps: int, device: Any, gradient_cache: str = "off") -> LoopSettings:
        """What the training loop is told, on this device."""
        from qontext.engine.precision import resolve_precision
        from qontext.engine.settings import LoopSettings

        return LoopSettings(
            steps=steps,
            lr=self.lr,
            warmup=self.warmup,
            schedule=self.schedule,
            weight_decay=self.weight_decay,
            clip=self.clip,
            dtype=resolve_precision(self.precision, device),
            gradient_cache=gradient_cache,
            checkpoint_minutes=self.checkpoint_minutes,
            log_every=self.log_every,
            track=self.track,
        )
