"""InfoNCE: the positive against all passages of the batch.

    L = -log  exp(s(q, p⁺)) / Σ_p exp(s(q, p))        s = similarity / τ;  p over all passages of all ranks, without
                                                      false negatives

Karpukhin et al. 2020; Wu et al. 2023, equation 12.

A teacher's loss may add it: L_teacher + w · L, with a temperature of its own, as in CADET.
"""

from __future__ import annotations

from typing import Annotated

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from qontext.finetune.losses.base import Comparison, Loss
from qontext.frame.config import Advanced, Options


class Contrastive(Loss):
    def __call__(self, batch: Comparison) -> dict[str, Tensor]:
        return {"contrastive": infonce(batch.scores(), batch.positive_Q)}


class WithContrastive(Options):
    """Options of losses that may add it."""

    contrastive_weight: Annotated[float, Advanced()] = Field(0.0, ge=0)
    """Weight of the contrastive loss, added to that of the teacher."""

    contrastive_temperature: Annotated[float | None, Advanced()] = Field(None, gt=0)
    """Temperature of the contrastive loss, if it differs from --temperature."""


def added_contrastive(options: WithContrastive, batch: Comparison) -> dict[str, Tensor]:
    """The weighted contrastive loss; nothing if the weight is 0."""
    if options.contrastive_weight == 0:
        return {}
    scores_QP = batch.scores(options.contrastive_temperature)
    return {"contrastive": options.contrastive_weight * infonce(scores_QP, batch.positive_Q)}


def infonce(scores_QP: Tensor, positive_Q: Tensor) -> Tensor:
    """Σ over queries of -log softmax of the scores at the positive."""
    return F.cross_entropy(scores_QP, positive_Q, reduction="sum")
