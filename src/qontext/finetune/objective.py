"""A retriever's loss: the positive against all passages of the batch, or a teacher's scores of the query's own.

    s(q, p) = <q, p> / τ                         over all passages p of all ranks
    InfoNCE = -log  exp(s(q, p⁺)) / Σ_p exp(s(q, p))
    KL      = Σ_p T(p) · (log T(p) - log softmax_p s(q, p))      T = softmax of the teacher's scores over the query's
                                                                  own passages, 0 at all others
    margin-MSE = mean over the query's own negatives of ( (s(q, p⁺) - s(q, p)) - (t(p⁺) - t(p)) )²

Each is a mean over queries. Sums over p exclude false negatives: passages with the text of a positive of the
query, except the positive of this visit. (Wu et al. 2023, equation 12; Gao & Callan 2022, equations 15 and
16, with the direction of the KL in which a target of 0 is defined; Hofstätter et al. 2020.)
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from qontext.finetune.batches import Keys, Texts
from qontext.models.encoder import Encoder
from qontext.models.pooling import POOLINGS
from qontext.training.batch import Output, TrainableModel

Loss = Literal["contrastive", "kl", "margin-mse"]


class BiEncoder(TrainableModel):
    """One encoder for queries and passages, or one for each (untied), and the loss between them."""

    contrastive = True

    def __init__(
        self,
        encoder: Encoder,
        pooling: str,
        similarity: str,
        temperature: float,
        loss: Loss = "contrastive",
        query_encoder: Encoder | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.query_encoder = encoder, query_encoder
        self.pooling, self.similarity = pooling, similarity
        self.temperature, self.loss = temperature, loss

    def forward(self, rows: Texts) -> Output:
        return Output(vectors=self.represent(rows))

    def represent(self, rows: Texts) -> Tensor:
        """[N, H] the texts' vectors, of length one if they are compared by cosine."""
        return self.vectors(rows.ids, rows.mask, are_queries=rows.are_queries)

    def vectors(self, ids_NT: Tensor, mask_NT: Tensor, *, are_queries: bool = False) -> Tensor:
        encoder = self.query_encoder if are_queries and self.query_encoder is not None else self.encoder
        (last_NTH,) = encoder(ids_NT, mask_NT)
        vectors_NH = POOLINGS[self.pooling](last_NTH.float(), mask_NT)
        return F.normalize(vectors_NH, dim=1) if self.similarity == "cosine" else vectors_NH

    def contrast(self, vectors_MH: Tensor, keys: Keys, rows: slice) -> dict[str, Tensor]:
        """The share of the loss of the queries in `rows`, from all ranks' vectors [M, H] and keys."""
        mine = keys[rows]
        asked, passages = keys[rows][mine.is_query], keys[~keys.is_query]
        scores_QP = vectors_MH[rows][mine.is_query] @ vectors_MH[~keys.is_query].T / self.temperature
        own_QP = asked.query[:, None] == passages.query
        positive_QP = own_QP & passages.is_positive
        total = keys.is_query.sum()
        if self.loss == "margin-mse":
            loss = margin_mse(scores_QP, passages.teacher, own_QP, positive_QP)
        else:
            scores_QP = scores_QP.masked_fill(
                is_known_positive(asked.known, passages.text) & ~positive_QP, -torch.inf
            )
            if self.loss == "kl":
                loss = divergence(scores_QP, passages.teacher, own_QP)
            else:
                loss = F.cross_entropy(scores_QP, positive_QP.int().argmax(1), reduction="sum")
        return {self.loss.replace("-", "_"): loss / total}


def is_known_positive(known_QK: Tensor, text_P: Tensor) -> Tensor:
    """[Q, P] whether a passage's text is that of one of the query's positives."""
    found = torch.zeros(len(known_QK), len(text_P), dtype=torch.bool, device=text_P.device)
    for known_Q in known_QK.T:
        found |= known_Q[:, None] == text_P
    return found


def divergence(scores_QP: Tensor, teacher_P: Tensor, own_QP: Tensor) -> Tensor:
    """Σ over queries of KL(T ‖ softmax of the scores)."""
    scored_QP = own_QP & ~teacher_P.isnan()
    target_QP = teacher_P.expand_as(scores_QP).masked_fill(~scored_QP, -torch.inf).log_softmax(1)
    student_QP = scores_QP.log_softmax(1)
    terms = target_QP.exp() * (target_QP - student_QP)
    return terms.masked_fill(~scored_QP, 0.0).sum()


def margin_mse(scores_QP: Tensor, teacher_P: Tensor, own_QP: Tensor, positive_QP: Tensor) -> Tensor:
    """Σ over queries of the mean squared difference of margins over the query's scored negatives."""
    teacher_QP = teacher_P.expand_as(scores_QP)
    negative_QP = own_QP & ~positive_QP & ~teacher_QP.isnan()
    best = positive_QP.int().argmax(1, keepdim=True)
    errors = (scores_QP.gather(1, best) - scores_QP) - (teacher_QP.gather(1, best) - teacher_QP)
    squares = errors.masked_fill(~negative_QP, 0.0).square().sum(1)
    return (squares / negative_QP.sum(1).clamp(min=1)).sum()
