"""Rank consistency: the passages of a query in a teacher's order, whatever its scores are.

    L = mean over pairs of the query's own passages with t(p) > t(p') of max(0, s(q, p') - s(q, p))
                                                                       s = similarity / τ

The scores t are the teacher's, such as those of a SPLADE retriever. Pairs include the positive; passages without a score and
false negatives are in none. Zhang et al. 2023 (LED), without a margin as in its released code, which adds InfoNCE with a
weight of 1.
"""

from __future__ import annotations

from torch import Tensor

from qontext.finetune.losses.base import Loss, ScoredBatch, WithContrastive
from qontext.finetune.losses.contrastive import added_contrastive


class RankConsistency(Loss):
    Options = WithContrastive
    reads_teacher = True

    def __call__(self, batch: ScoredBatch) -> dict[str, Tensor]:
        ranked_QP = batch.is_own_QP & ~batch.is_false_negative_QP & ~batch.teacher_P.isnan()
        scores_QP = batch.similarity_QP / batch.temperature
        loss = inconsistency(scores_QP, batch.teacher_P, ranked_QP)
        return {"rank": loss} | added_contrastive(self.options.contrastive_weight, batch)


def inconsistency(scores_QP: Tensor, teacher_P: Tensor, ranked_QP: Tensor) -> Tensor:
    """Σ over queries of the mean hinge over the pairs of ranked passages of which the teacher prefers the first."""
    count = max([1, *ranked_QP.sum(1).tolist()])
    places_QC = ranked_QP.int().topk(count, 1).indices
    is_ranked_QC = ranked_QP.gather(1, places_QC)
    scores_QC, teacher_QC = scores_QP.gather(1, places_QC), teacher_P[places_QC]
    is_pair_QCC = (
        (teacher_QC[:, :, None] > teacher_QC[:, None]) & is_ranked_QC[:, :, None] & is_ranked_QC[:, None]
    )
    hinge_QCC = (scores_QC[:, None] - scores_QC[:, :, None]).relu()
    sums_Q = hinge_QCC.masked_fill(~is_pair_QCC, 0.0).sum((1, 2))
    return (sums_Q / is_pair_QCC.sum((1, 2)).clamp(min=1)).sum()
