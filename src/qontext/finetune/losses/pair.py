"""PAIR: InfoNCE, and a passage-centered loss that keeps the positive more similar to its query than to other passages.

    L = (1 - α) · InfoNCE + α · -log  exp(s(q, p⁺)) / ( exp(s(q, p⁺)) + Σ_{p ≠ p⁺} exp(s(p⁺, p)) )

False negatives of the query are left out of both sums. Ren et al. 2021, with α = 0.1, in a first stage.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from qontext.finetune.losses.base import Loss, ScoredBatch
from qontext.finetune.losses.contrastive import infonce
from qontext.frame.config import Options


class PairOptions(Options):
    passage_weight: float = Field(0.1, gt=0, lt=1)
    """Share of the passage-centered loss."""


class PairLoss(Loss):
    Options = PairOptions

    def __call__(self, batch: ScoredBatch) -> dict[str, Tensor]:
        weight = self.options.passage_weight
        between_QP = batch.representation.similarity(batch.passages[batch.positive_Q], batch.passages)
        centered_QP = torch.where(batch.is_positive_QP, batch.similarity_QP, between_QP) / batch.temperature
        centered_QP = centered_QP.masked_fill(batch.is_false_negative_QP, -torch.inf)
        return {
            "contrastive": (1 - weight) * infonce(batch.scores(), batch.positive_Q),
            "passages": weight * infonce(centered_QP, batch.positive_Q),
        }
