"""The base class of losses, and what they read: the similarity of a batch's queries and passages.

Shapes: Q queries of a slice of the batch, P passages of the whole batch, from all ranks; … the shape of one representation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from qontext.frame import config
from qontext.frame.config import Advanced, Input
from qontext.models.representations.base import Representation


@dataclass(frozen=True)
class ScoredBatch:
    """Queries and passages, compared. Exactly one passage of a query is its positive of this visit."""

    representation: Representation
    passages: Tensor
    """[P, …] the passages' representations."""
    similarity_QP: Tensor
    """Similarity of the representations, such as a dot product."""
    temperature: float
    """τ: the setting, or the default of the representation."""
    is_own_QP: Tensor
    """The query's own passages: its positive and its negatives."""
    is_positive_QP: Tensor
    """The positive."""
    is_false_negative_QP: Tensor
    """Passages with the text of a positive of the query, except the positive."""
    teacher_P: Tensor
    """The teacher's score of a passage for its own query; NaN if it has none."""

    @property
    def positive_Q(self) -> Tensor:
        """The place of the positive among the passages."""
        return self.is_positive_QP.int().argmax(1)

    def scores(self, temperature: float | None = None) -> Tensor:
        """[Q, P] similarity / τ, or by a temperature of one's own; -inf at false negatives."""
        scores_QP = self.similarity_QP / (temperature or self.temperature)
        return scores_QP.masked_fill(self.is_false_negative_QP, -torch.inf)


class Loss:
    """Base class of the losses."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("__call__",)
    """The methods that a loss must define."""
    Options: ClassVar[type[config.Options]] = config.Options
    reads_teacher: ClassVar[bool] = False
    """True if it needs a teacher's scores, from `--teacher`."""

    def __init__(self, options: Any) -> None:
        self.options = options

    def __call__(self, batch: ScoredBatch) -> dict[str, Tensor]:
        """Named losses, each a sum over the Q queries; the training divides them by the queries of the whole batch."""
        raise NotImplementedError


class WithBatchTeacher(config.Options):
    """Options of losses beside which a second teacher may score the whole batch, as in TAS-B."""

    batch_teacher: Annotated[str | None, Input()] = None
    """A second teacher, which scores all passages of the batch: a retriever of --representation tokens (TAS-B), or a larger
    encoder of one vector. Its loss, margin-MSE over other queries' passages, is added."""

    batch_teacher_weight: Annotated[float, Advanced()] = Field(0.75, gt=0)
    """Weight of the second teacher's loss."""


class WithContrastive(config.Options):
    """Options of losses of a teacher's scores to which the contrastive loss may be added."""

    contrastive_weight: Annotated[float, Advanced()] = Field(0.0, ge=0)
    """Weight of the contrastive loss, added to that of the teacher."""
