"""Options shared by several methods, as base classes, and the settings common to all methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from qontext.frame.config import Options
from qontext.frame.errors import QontextError


@dataclass(frozen=True)
class Common:
    """The settings of `qontext pretrain` that every method reads. `has_queries` means that contexts are, or
    may be, queries.
    """

    seed: int = 42
    vector: Literal["cls", "mean"] = "cls"
    similarity: Literal["dot", "cosine"] = "dot"
    has_queries: bool = False


class Weights(Options):
    """Options of methods with a head besides the encoder's own prediction."""

    late_mlm_weight: float = Field(1.0, ge=0)
    """Weight of the encoder's own masked language model loss; 0 disables it."""

    head_weight: float = Field(1.0, ge=0)
    """Weight of the loss of the condenser head or the decoder; 0 disables it."""

    @model_validator(mode="after")
    def _has_a_loss(self) -> Self:
        self.check_weights()
        return self

    def check_weights(self) -> None:
        """Refuse weights that disable all losses."""
        if self.late_mlm_weight == self.head_weight == 0:
            raise QontextError("late_mlm_weight and head_weight are both 0")


class Layers(Options):
    """Options of methods whose head consists of layers like the encoder's."""

    decoder_layers: int | None = Field(None, ge=1, le=24)
    """Number of layers of the condenser head or the decoder. Default: 2, or 1 for the autoregressive decoder."""

    decoder_init: str = "random"
    """Initialization of the head's layers: random, or copies of encoder layers, such as 0,1 or 10,11."""

    @model_validator(mode="after")
    def _names_layers(self) -> Self:
        self.copied_layers()
        return self

    def layers(self, default: int) -> int:
        """The number of layers of the head."""
        copied = self.copied_layers()
        return self.decoder_layers or (len(copied) if copied else default)

    def copied_layers(self) -> tuple[int, ...] | None:
        """The encoder layers to copy into the head, counted from 0; None for new ones."""
        if self.decoder_init == "random":
            return None
        try:
            numbers = tuple(int(part) for part in self.decoder_init.split(","))
        except ValueError:
            raise QontextError(
                f"decoder_init = {self.decoder_init!r} is neither 'random' nor layer numbers such as '10,11'"
            ) from None
        if self.decoder_layers is not None and len(numbers) != self.decoder_layers:
            raise QontextError(
                f"decoder_init names {len(numbers)} layers, but decoder_layers is {self.decoder_layers}"
            )
        return numbers
