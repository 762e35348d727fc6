"""KL divergence from a teacher's distribution over a query's own passages.

    L = Σ_p T(p) · (log T(p) - log softmax_p s(q, p))        T = softmax(t / τ_T) over the query's own passages, 0 at others
                                                             s = similarity / τ;  softmax over all passages of the batch,
                                                             without false negatives, or over the query's own, as in
                                                             CADET

The scores t are the teacher's logits or, as in CADET, their logistic function. Passages without a score are skipped.
Gao & Callan 2022, equations 15 and 16, with the direction of the KL in which a target of 0 is defined.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from qontext.finetune.losses.base import Loss, ScoredBatch, WithContrastive
from qontext.finetune.losses.contrastive import added_contrastive
from qontext.frame.config import Advanced


class KlOptions(WithContrastive):
    contrastive_temperature: Annotated[float | None, Advanced()] = Field(None, gt=0)
    """Temperature of the contrastive loss, if it differs from --temperature."""

    teacher_temperature: Annotated[float, Advanced()] = Field(1.0, gt=0)
    """Temperature of the softmax over the teacher's scores."""

    teacher_scores: Annotated[Literal["logits", "probabilities"], Advanced()] = "logits"
    """Take the softmax of the teacher's scores, or of their logistic function, between 0 and 1."""

    student_softmax: Annotated[Literal["batch", "own"], Advanced()] = "batch"
    """Take the softmax of the retriever's scores over all passages of the batch, or over those of the query."""


class KlDivergence(Loss):
    Options = KlOptions
    reads_teacher = True

    def __call__(self, batch: ScoredBatch) -> dict[str, Tensor]:
        teacher_P = batch.teacher_P
        teacher_P = teacher_P.sigmoid() if self.options.teacher_scores == "probabilities" else teacher_P
        teacher_P = teacher_P / self.options.teacher_temperature
        scores_QP = batch.scores()
        if self.options.student_softmax == "own":
            scores_QP = scores_QP.masked_fill(~batch.is_own_QP, -torch.inf)
        loss = {"kl": divergence(scores_QP, teacher_P, batch.is_own_QP)}
        return loss | added_contrastive(
            self.options.contrastive_weight, batch, self.options.contrastive_temperature
        )


def divergence(scores_QP: Tensor, teacher_P: Tensor, own_QP: Tensor) -> Tensor:
    """Σ over queries of KL(T ‖ softmax of the scores)."""
    scored_QP = own_QP & ~teacher_P.isnan()
    target_QP = teacher_P.expand_as(scores_QP).masked_fill(~scored_QP, -torch.inf).log_softmax(1)
    student_QP = scores_QP.log_softmax(1)
    terms = target_QP.exp() * (target_QP - student_QP)
    return terms.masked_fill(~scored_QP, 0.0).sum()
