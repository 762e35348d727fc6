"""A retriever in training: its encoder, its representation and the loss between queries and passages.

The similarity is that of the representation, such as a dot product of vectors or of weights of words
(`models/representations/`); the losses, a file each with its equation, are in `losses/`. A loss is a mean over queries, of
which each process computes the share of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qontext.finetune.batches import LabelKeys, Texts
from qontext.finetune.losses.base import Loss, ScoredBatch
from qontext.finetune.losses.contrastive import Contrastive
from qontext.frame.config import Options
from qontext.models.encoder import Encoder
from qontext.models.representations.base import Representation
from qontext.training.batch import Output, TrainableModel, check_losses


class BiEncoder(TrainableModel):
    """One encoder for queries and passages, or one for each (untied), and the loss between them."""

    contrastive = True

    def __init__(
        self,
        encoder: Encoder,
        representation: Representation,
        temperature: float = 1.0,
        loss: Loss | None = None,
        query_encoder: Encoder | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.query_encoder, self.representation = encoder, query_encoder, representation
        self.temperature, self.loss = temperature, loss or Contrastive(Options())

    def forward(self, rows: Texts) -> Output:
        return Output(vectors=self.represent(rows))

    def represent(self, rows: Texts) -> Tensor:
        """[N, …] the texts' representations."""
        return self.vectors(rows.ids, rows.mask, are_queries=rows.are_queries)

    def vectors(self, ids_NT: Tensor, mask_NT: Tensor, *, are_queries: bool = False) -> Tensor:
        encoder = self.query_encoder if are_queries and self.query_encoder is not None else self.encoder
        texts: Tensor = self.representation(encoder, ids_NT, mask_NT, are_queries)
        return texts

    def contrast(self, vectors_MH: Tensor, keys: LabelKeys, rows: slice) -> dict[str, Tensor]:
        """The share of the loss of the queries in `rows`, from all ranks' representations [M, …] and keys."""
        versions, total = self.representation.versions(vectors_MH), dict[str, Tensor]()
        for part in versions:
            for name, loss in self._losses(part, keys, rows).items():
                total[name] = total[name] + loss / len(versions) if name in total else loss / len(versions)
        return total | self.representation.regularize(vectors_MH, keys.is_query, rows, self.progress)

    def _losses(self, vectors_MH: Tensor, keys: LabelKeys, rows: slice) -> dict[str, Tensor]:
        total = keys.is_query.sum()
        queries, passages = keys[rows][keys[rows].is_query], keys[~keys.is_query]
        own_QP = queries.query[:, None] == passages.query
        positive_QP = own_QP & passages.is_positive
        comparison = ScoredBatch(
            representation=self.representation,
            passages=vectors_MH[~keys.is_query],
            similarity_QP=self.representation.similarity(*sides(vectors_MH, keys, rows)),
            temperature=self.temperature,
            is_own_QP=own_QP,
            is_positive_QP=positive_QP,
            is_false_negative_QP=is_known_positive(queries.known, passages.text) & ~positive_QP,
            teacher_P=passages.teacher,
        )
        losses = check_losses(self.loss(comparison), f"{type(self.loss).__name__} returned")
        return {name: loss / total for name, loss in losses.items()}


def sides(texts: Tensor, keys: LabelKeys, rows: slice) -> tuple[Tensor, Tensor]:
    """The queries [Q, …] in `rows`, and the passages [P, …], of the texts [M, …] of the whole batch."""
    return texts[rows][keys.is_query[rows]], texts[~keys.is_query]


def is_known_positive(known_QK: Tensor, text_P: Tensor) -> Tensor:
    """[Q, P] whether a passage's text is that of one of the query's positives."""
    is_known_QP = torch.zeros(len(known_QK), len(text_P), dtype=torch.bool, device=text_P.device)
    for known_Q in known_QK.T:
        is_known_QP |= known_Q[:, None] == text_P
    return is_known_QP
