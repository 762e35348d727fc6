"""Margin-MSE: a teacher's differences of scores between the positive and the query's own negatives.

    L = mean over the query's own negatives p of ( (s(q, p⁺) - s(q, p)) - (t(p⁺) - t(p)) )²        s = similarity / τ

The scores t are the teacher's; negatives without one are skipped. Hofstätter et al. 2020.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from qontext.finetune.losses.base import Loss, ScoredBatch, WithBatchTeacher
from qontext.frame.config import Advanced


class MarginMseOptions(WithBatchTeacher):
    margin_bins: Annotated[int | None, Advanced()] = Field(None, ge=2)
    """Draw negatives evenly from this many bins of the teacher's margin to the positive (TAS-B)."""


class MarginMse(Loss):
    Options = MarginMseOptions
    reads_teacher = True

    def __call__(self, batch: ScoredBatch) -> dict[str, Tensor]:
        scores_QP = batch.similarity_QP / batch.temperature
        loss = margin_mse(scores_QP, batch.teacher_P, batch.is_own_QP, batch.is_positive_QP)
        return {"margin_mse": loss}


def margin_mse(scores_QP: Tensor, teacher: Tensor, compared_QP: Tensor, positive_QP: Tensor) -> Tensor:
    """Σ over queries of the mean squared difference of margins over the compared passages, but for the positive and those
    without a score of the teacher, [P] or [Q, P]."""
    teacher_QP = teacher.expand_as(scores_QP)
    negative_QP = compared_QP & ~positive_QP & ~teacher_QP.isnan()
    best = positive_QP.int().argmax(1, keepdim=True)
    errors = (scores_QP.gather(1, best) - scores_QP) - (teacher_QP.gather(1, best) - teacher_QP)
    squares = errors.masked_fill(~negative_QP, 0.0).square().sum(1)
    return (squares / negative_QP.sum(1).clamp(min=1)).sum()
