"""InfoNCE: the positive against all passages of the batch.

    L = -log  exp(s(q, p⁺)) / Σ_p exp(s(q, p))        s = similarity / τ;  p over all passages of all ranks, without
                                                      false negatives

Karpukhin et al. 2020; Wu et al. 2023, equation 12.

A teacher's loss may add it: L_teacher + w · L, with a temperature of its own, as in CADET.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from qontext.finetune.losses.base import Loss, ScoredBatch, WithBatchTeacher


class Contrastive(Loss):
    Options = WithBatchTeacher

    def __call__(self, batch: ScoredBatch) -> dict[str, Tensor]:
        return {"contrastive": infonce(batch.scores(), batch.positive_Q)}


def added_contrastive(
    weight: float, batch: ScoredBatch, temperature: float | None = None
) -> dict[str, Tensor]:
    """The weighted contrastive loss; nothing if the weight is 0."""
    if weight == 0:
        return {}
    return {"contrastive": weight * infonce(batch.scores(temperature), batch.positive_Q)}


def infonce(scores_QP: Tensor, positive_Q: Tensor) -> Tensor:
    """Σ over queries of -log softmax of the scores at the positive."""
    return F.cross_entropy(scores_QP, positive_Q, reduction="sum")
