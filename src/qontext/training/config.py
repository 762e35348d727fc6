"""Settings of every training: steps, learning rate, number format, device."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from qontext.frame.artifacts import Workdir
from qontext.frame.config import Advanced, DeviceConfig, Machine, Seed
from qontext.frame.errors import QontextError
from qontext.frame.parts import RunsOn

if TYPE_CHECKING:
    from qontext.models.batching import Grid
    from qontext.models.encoder import Encoder
    from qontext.models.folder import TextKind


class TrainingConfig(DeviceConfig):
    """Settings of all trainings that `training.loop` runs."""

    steps: int | None = Field(None, ge=1)
    """Optimizer steps. Default: derived from --epochs."""

    epochs: float | None
    batch_size: int
    lr: float
    # Each training has defaults of its own for these three.

    minutes: Annotated[float | None, Advanced()] = Field(None, gt=0)
    """Time limit in minutes: the training ends then, or after its steps if that is earlier. The learning rate falls with
    the share of the time, or of the steps if that is larger."""

    warmup: Annotated[float, Advanced()] = Field(0.1, ge=0, le=1)
    """Share of the steps for learning-rate warmup."""

    schedule: Annotated[Literal["linear", "cosine", "constant"], Advanced()] = "linear"
    """Learning-rate schedule after the warmup."""

    weight_decay: Annotated[float, Advanced()] = Field(0.01, ge=0)
    """Weight decay of matrices (not of biases and norms)."""

    dropout: Annotated[float | None, Advanced()] = Field(None, ge=0, lt=1)
    """Dropout rate of the model. Default: from its configuration."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format of matrix products. Auto: bf16 if the hardware supports it, else fp32."""

    seed: Seed = 42
    """Random seed."""

    micro_tokens: Annotated[int, Machine()] = Field(0, ge=0)
    """Token budget per micro-batch. Lower it if memory runs out. 0: 8,192 on a CPU, 65,536 on a GPU."""

    on: Annotated[RunsOn, Advanced()] = "local"
    """Runner of the training: local (this process, or those of torchrun), ray (the Ray cluster that this machine
    belongs to, or a new one on this machine alone), or the address of a cluster, HOST:PORT or ray://HOST:PORT."""

    ranks: Annotated[int | None, Machine(), Advanced()] = Field(None, ge=1, le=100_000)
    """With --on: number of processes. Default: one per GPU, or else one per machine, as far as they divide the batch."""

    activation_checkpointing: Annotated[bool, Machine(), Advanced()] = False
    """Keep only the inputs of the layers for the backward pass, and compute the layers again: about a third more time, and a
    fraction of the memory of a micro-batch."""

    checkpoint_minutes: Annotated[float, Machine()] = Field(15.0, ge=0)
    """Minutes between checkpoints; a killed run loses at most that much work. 0: after every step."""

    log_every: Annotated[int, Machine()] = Field(20, ge=1)
    """Steps between lines of metrics."""

    track: Annotated[Literal["none", "tensorboard", "trackio"], Machine()] = "none"
    """Also log to TensorBoard or trackio (extra: track)."""

    @model_validator(mode="after")
    def _has_ranks(self) -> Self:
        if self.ranks is not None and self.on == "local":
            raise QontextError("--ranks needs --on, such as --on ray", remedy="On one machine, use torchrun.")
        return self

    def token_budget(self, device: Any) -> int:
        """The token budget per micro-batch on this device."""
        return self.micro_tokens or (65_536 if device.type == "cuda" else 8_192)

    def settled(self, work: Workdir, device: Any) -> Self:
        """These settings with the format, never `auto`, to compute `work` in."""
        from qontext.models.precision import settle_precision

        return self.model_copy(update={"precision": settle_precision(work, self.precision, device)})

    def grid(self, device: Any) -> Grid:
        """The shapes of micro-batches in these settings' format."""
        from qontext.models.batching import grid_for
        from qontext.models.precision import resolve_precision

        return grid_for(device, resolve_precision(self.precision, device))

    def steps_over(self, examples: int) -> int:
        """The number of steps, derived from the epochs if not set."""
        return self.steps or max(1, math.ceil((self.epochs or 1) * examples / self.batch_size))


class AdaptedConfig(TrainingConfig):
    """Settings of trainings of an encoder that can be restricted to adapters."""

    lora_rank: Annotated[int, Advanced()] = Field(0, ge=0, le=4096)
    """Train low-rank adapters (LoRA) of this rank beside the encoder's frozen weights, which takes a fraction of the memory
    of weights, gradients and moments; they are merged when it is saved, and also written to its folder adapter/ in peft's
    format. Set --lr to about ten times that of full training. 0: train all weights. Extra: lora."""

    def add_adapters(self, backbone: Any, seed: int = 0) -> None:
        """Add the adapters to a backbone, if there are to be any; `seed` tells several of a training apart."""
        from qontext.training import adapters

        if self.lora_rank:
            adapters.add(backbone, self.lora_rank, self.seed + seed)

    def save_adapter(self, backbone: Any, folder: Path, encoder: str) -> None:
        """Write the adapter of a backbone into a model folder, if there is one."""
        from qontext.training import adapters

        if self.lora_rank:
            is_path = Path(encoder).expanduser().exists()
            adapters.save(backbone, folder / adapters.FOLDER, "" if is_path else encoder)


class EncoderConfig(AdaptedConfig):
    """Settings of trainings of an encoder of texts."""

    query_prompt: str | None = None
    """Text before each query, such as "query: ", here and wherever the result is used; or the name of one of the
    encoder's prompts. Default: as the encoder's folder says, else nothing."""

    passage_prompt: str | None = None
    """Text before each passage. Default: as the encoder's folder says, else nothing."""

    attention: Annotated[Literal["model", "bidirectional"], Advanced()] = "model"
    """Attention of a decoder: from left to right, as in the model, or in both directions, which the result records."""

    def open_encoder(self, name: str, *, tokenizer: str | None = None) -> Encoder:
        """The encoder to train, with these settings."""
        from qontext.models.encoder import load_encoder

        encoder = load_encoder(
            name,
            tokenizer=tokenizer,
            seed=self.seed,
            dropout=self.dropout,
            bidirectional=self.attention == "bidirectional",
        )
        given: dict[TextKind, str | None] = {"query": self.query_prompt, "passage": self.passage_prompt}
        for kind, prompt in given.items():
            if prompt is not None:
                encoder.prompts[kind] = encoder.named_prompts.get(prompt, prompt)
        return encoder
