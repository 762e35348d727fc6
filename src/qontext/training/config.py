"""Settings of every training: steps, learning rate, number format, device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field

from qontext.frame.artifacts import Workdir
from qontext.frame.config import Advanced, Machine, Seed, StageConfig

if TYPE_CHECKING:
    from qontext.models.packing import Grid


class TrainingConfig(StageConfig):
    """Settings of all trainings that `training.loop` runs."""

    steps: int | None = Field(None, ge=1)
    """Optimizer steps. Default: derived from --epochs."""

    epochs: float | None
    batch_size: int
    lr: float
    # Each training has defaults of its own for these three.

    warmup: Annotated[float, Advanced()] = Field(0.1, ge=0, le=1)
    """Share of the steps for learning-rate warmup."""

    schedule: Annotated[Literal["linear", "cosine", "constant"], Advanced()] = "linear"
    """Learning-rate schedule after the warmup."""

    weight_decay: Annotated[float, Advanced()] = Field(0.01, ge=0)
    """Weight decay of matrices (not of biases and norms)."""

    clip: Annotated[float, Advanced()] = Field(1.0, gt=0)
    """Maximum gradient norm."""

    dropout: Annotated[float | None, Advanced()] = Field(None, ge=0, lt=1)
    """Dropout rate of the model. Default: from its configuration."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format of matrix products. Auto: bf16 if the hardware supports it, else fp32."""

    seed: Seed = 42
    """Random seed."""

    micro_tokens: Annotated[int, Machine()] = Field(0, ge=0)
    """Token budget per micro-batch. Lower it if memory runs out. 0: 8,192 on a CPU, 65,536 on a GPU."""

    device: Annotated[str, Machine()] = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""

    checkpoint_minutes: Annotated[float, Machine()] = Field(15.0, ge=0)
    """Minutes between checkpoints; a killed run loses at most that much work. 0: after every step."""

    log_every: Annotated[int, Machine()] = Field(20, ge=1)
    """Steps between lines of metrics."""

    track: Annotated[Literal["none", "tensorboard", "trackio"], Machine()] = "none"
    """Also log to TensorBoard or trackio (extra: track)."""

    def token_budget(self, device: Any) -> int:
        """The token budget per micro-batch on this device."""
        return self.micro_tokens or (65_536 if device.type == "cuda" else 8_192)

    def settled(self, work: Workdir, device: Any) -> Self:
        """These settings with the format, never `auto`, to compute `work` in."""
        from qontext.models.precision import settle_precision

        return self.model_copy(update={"precision": settle_precision(work, self.precision, device)})

    def grid(self, device: Any) -> Grid:
        """The shapes of micro-batches in these settings' format."""
        from qontext.models.packing import grid_for
        from qontext.models.precision import resolve_precision

        return grid_for(device, resolve_precision(self.precision, device))

    def steps_over(self, examples: int) -> int:
        """The number of steps, derived from the epochs if not set."""
        return self.steps or max(1, math.ceil((self.epochs or 1) * examples / self.batch_size))
