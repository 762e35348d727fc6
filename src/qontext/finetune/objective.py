"""A retriever's loss: the positive against all passages of the batch, or a teacher's scores of the query's own.

    s(q, p) = similarity(q, p) / τ               over all passages p of all ranks
    InfoNCE = -log  exp(s(q, p⁺)) / Σ_p exp(s(q, p))
    KL      = Σ_p T(p) · (log T(p) - log softmax_p s(q, p))      T = softmax of the teacher's scores over the query's
                                                                  own passages, 0 at all others
    margin-MSE = mean over the query's own negatives of ( (s(q, p⁺) - s(q, p)) - (t(p⁺) - t(p)) )²
    PAIR    = (1 - α) · InfoNCE + α · -log  exp(s(q, p⁺)) / ( exp(s(q, p⁺)) + Σ_{p ≠ p⁺} exp(s(p⁺, p)) )

The similarity is that of the representation, such as a dot product of vectors or of weights of words
(`models/representations/`). Each loss is a mean over queries. Sums over p exclude false negatives: passages with the text
of a positive of the query, except the positive of this visit. (Wu et al. 2023, equation 12; Gao & Callan 2022, equations
15 and 16, with the direction of the KL in which a target of 0 is defined; Hofstätter et al. 2020; Ren et al. 2021.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from qontext.finetune.batches import Keys, Texts
from qontext.models.encoder import Encoder
from qontext.models.representations.base import Representation
from qontext.training.batch import Output, TrainableModel

Loss = Literal["contrastive", "kl", "margin-mse"]


@dataclass(frozen=True)
class Terms:
    """What may be added to the loss."""

    passage_weight: float = 0.0
    """α of PAIR."""

    teacher_temperature: float = 1.0
    """What the teacher's scores are divided by before their softmax."""

    teacher_scores: Literal["logits", "probabilities"] = "logits"
    """What the softmax is of: the teacher's scores, or their logistic function."""

    contrastive_weight: float = 0.0
    """Weight of InfoNCE beside a teacher's loss."""

    contrastive_temperature: float | None = None
    """Its own temperature, if it has one."""


class BiEncoder(TrainableModel):
    """One encoder for queries and passages, or one for each (untied), and the loss between them."""

    contrastive = True

    def __init__(
        self,
        encoder: Encoder,
        representation: Representation,
        temperature: float = 1.0,
        loss: Loss = "contrastive",
        query_encoder: Encoder | None = None,
        terms: Terms = Terms(),
    ) -> None:
        super().__init__()
        self.encoder, self.query_encoder, self.representation = encoder, query_encoder, representation
        self.temperature, self.loss, self.terms = temperature, loss, terms

    def forward(self, rows: Texts) -> Output:
        return Output(vectors=self.represent(rows))

    def represent(self, rows: Texts) -> Tensor:
        """[N, …] the texts' representations."""
        return self.vectors(rows.ids, rows.mask, are_queries=rows.are_queries)

    def vectors(self, ids_NT: Tensor, mask_NT: Tensor, *, are_queries: bool = False) -> Tensor:
        encoder = self.query_encoder if are_queries and self.query_encoder is not None else self.encoder
        texts: Tensor = self.representation(encoder, ids_NT, mask_NT, are_queries)
        return texts

    def contrast(self, vectors_MH: Tensor, keys: Keys, rows: slice) -> dict[str, Tensor]:
        """The share of the loss of the queries in `rows`, from all ranks' representations [M, …] and keys."""
        versions, total = self.representation.versions(vectors_MH), dict[str, Tensor]()
        for part in versions:
            for name, loss in self._losses(part, keys, rows).items():
                total[name] = total[name] + loss / len(versions) if name in total else loss / len(versions)
        return total | self.representation.regularize(vectors_MH, keys.is_query, rows, self.progress)

    def _losses(self, vectors_MH: Tensor, keys: Keys, rows: slice) -> dict[str, Tensor]:
        terms, total = self.terms, keys.is_query.sum()
        queries, passages = keys[rows][keys[rows].is_query], keys[~keys.is_query]
        passages_PH = vectors_MH[~keys.is_query]
        similar_QP = self.representation.similarity(*sides(vectors_MH, keys, rows))
        own_QP = queries.query[:, None] == passages.query
        positive_QP = own_QP & passages.is_positive
        left_out_QP = is_known_positive(queries.known, passages.text) & ~positive_QP
        losses = {}
        if self.loss == "margin-mse":
            scores_QP = similar_QP / self.temperature
            losses["margin_mse"] = margin_mse(scores_QP, passages.teacher, own_QP, positive_QP)
        elif self.loss == "kl":
            scores_QP = (similar_QP / self.temperature).masked_fill(left_out_QP, -torch.inf)
            teacher_P = passages.teacher
            teacher_P = teacher_P.sigmoid() if terms.teacher_scores == "probabilities" else teacher_P
            losses["kl"] = divergence(scores_QP, teacher_P / terms.teacher_temperature, own_QP)
        if self.loss == "contrastive" or terms.contrastive_weight > 0:
            weight = 1 - terms.passage_weight if self.loss == "contrastive" else terms.contrastive_weight
            scores_QP = similar_QP / (terms.contrastive_temperature or self.temperature)
            scores_QP = scores_QP.masked_fill(left_out_QP, -torch.inf)
            losses["contrastive"] = weight * cross_entropy(scores_QP, positive_QP)
        if terms.passage_weight > 0:
            positives_QH = passages_PH[positive_QP.int().argmax(1)]
            between_QP = self.representation.similarity(positives_QH, passages_PH)
            scores_QP = torch.where(positive_QP, similar_QP, between_QP) / self.temperature
            scores_QP = scores_QP.masked_fill(left_out_QP, -torch.inf)
            losses["passages"] = terms.passage_weight * cross_entropy(scores_QP, positive_QP)
        return {name: loss / total for name, loss in losses.items()}


def sides(texts: Tensor, keys: Keys, rows: slice) -> tuple[Tensor, Tensor]:
    """The queries [Q, …] in `rows`, and the passages [P, …], of the texts [M, …] of the whole batch."""
    return texts[rows][keys.is_query[rows]], texts[~keys.is_query]


def cross_entropy(scores_QP: Tensor, positive_QP: Tensor) -> Tensor:
    """Σ over queries of -log softmax of the scores at the positive."""
    return F.cross_entropy(scores_QP, positive_QP.int().argmax(1), reduction="sum")


def is_known_positive(known_QK: Tensor, text_P: Tensor) -> Tensor:
    """[Q, P] whether a passage's text is that of one of the query's positives."""
    is_known_QP = torch.zeros(len(known_QK), len(text_P), dtype=torch.bool, device=text_P.device)
    for known_Q in known_QK.T:
        is_known_QP |= known_Q[:, None] == text_P
    return is_known_QP


def divergence(scores_QP: Tensor, teacher_P: Tensor, own_QP: Tensor) -> Tensor:
    """Σ over queries of KL(T ‖ softmax of the scores)."""
    scored_QP = own_QP & ~teacher_P.isnan()
    target_QP = teacher_P.expand_as(scores_QP).masked_fill(~scored_QP, -torch.inf).log_softmax(1)
    student_QP = scores_QP.log_softmax(1)
    terms = target_QP.exp() * (target_QP - student_QP)
    return terms.masked_fill(~scored_QP, 0.0).sum()


def margin_mse(scores_QP: Tensor, teacher: Tensor, compared_QP: Tensor, positive_QP: Tensor) -> Tensor:
    """Σ over queries of the mean squared difference of margins over the compared passages, but for the positive and those
    without a score of the teacher, [P] or [Q, P]."""
    teacher_QP = teacher.expand_as(scores_QP)
    negative_QP = compared_QP & ~positive_QP & ~teacher_QP.isnan()
    best = positive_QP.int().argmax(1, keepdim=True)
    errors = (scores_QP.gather(1, best) - scores_QP) - (teacher_QP.gather(1, best) - teacher_QP)
    squares = errors.masked_fill(~negative_QP, 0.0).square().sum(1)
    return (squares / negative_QP.sum(1).clamp(min=1)).sum()
