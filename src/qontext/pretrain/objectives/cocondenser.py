"""coCondenser: Condenser on both members of a pair, and a contrastive loss between them.

    L_co(i) = -log  exp(s(h_i, h_i')) / Σ_{k ≠ i} exp(s(h_i, h_k))        k over all 2n rows of all ranks
    L       = head MLM + late MLM  +  w · mean over rows of L_co

h is the last layer's [CLS]; s = <h, h'> / τ with τ = 1, or their cosine / τ. The MLM terms are means over the
batch's masked tokens with equal weights: a query of 10 tokens counts as much as 10 tokens of a passage.
(Equation 5 sums over a span's masked tokens, equation 7 averages these sums over spans.) With queries as
contexts this is QaC-coCondenser. Gao & Callan 2022, equations 5–7; Wu et al. 2023, section 3.1, for
query-as-context.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from qontext.frame.errors import QontextError
from qontext.pretrain.batches import Layout
from qontext.pretrain.objectives.base import Common, HeadLayers, Phase
from qontext.pretrain.objectives.condenser import Condenser, Weights
from qontext.pretrain.objectives.contrast import Contrast, Contrasting


class CoCondenserOptions(HeadLayers, Weights, Contrast):
    contrastive_weight: float = Field(1.0, ge=0)
    """Weight of the contrastive loss; 0 disables it."""

    encoder_mask: float = Field(0.15, ge=0, le=1)
    """Share of masked tokens (at least one token). 0 disables the MLM terms."""

    condenser_steps: int = Field(0, ge=0)
    """Number of initial steps with the method condenser, so that the contrastive phase starts with a trained head."""

    @model_validator(mode="after")
    def _has_a_loss(self) -> Self:
        if not any((self.late_mlm_weight, self.head_weight, self.contrastive_weight)):
            raise QontextError("all three loss weights are 0")
        return self


class CoCondenser(Contrasting, Condenser):
    Options = CoCondenserOptions
    options: CoCondenserOptions
    contrastive = True

    @staticmethod
    def layout(options: Any, common: Common) -> Layout:
        return Layout("both", "nothing", options.encoder_mask)

    @classmethod
    def phases(cls, name: str, options: CoCondenserOptions, steps: int) -> list[Phase]:
        first = [Phase("condenser", Condenser, options.condenser_steps)] if options.condenser_steps else []
        return [*first, Phase(name, cls, steps)]

    def missing_head(self) -> str | None:
        if self.options.head_weight == 0:
            return None
        return (
            "has no Condenser head; a randomly initialized one will be trained. "
            "Start from an encoder pre-trained with --method condenser, or set --condenser-steps."
        )
