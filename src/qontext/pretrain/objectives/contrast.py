"""The contrastive loss between the members of pairs, of coCondenser and of methods that add it to their own losses.

    L_co(i) = -log  exp(s(h_i, h_i')) / Σ_{k ≠ i} exp(s(h_i, h_k))        k over all 2n rows of all ranks
    s       = <h, h'> / τ, or their cosine / τ

Gao & Callan 2022, equation 6. False negatives: a row k with the text of i or of i', or whose partner k' has the text of i,
is excluded from the sum.

Shapes: M rows of the whole batch, R rows of a slice of it, H hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from qontext.frame.config import Options
from qontext.pretrain.batches import Keys
from qontext.pretrain.objectives.base import Common


class Contrast(Options):
    """Options of methods with a contrastive loss."""

    contrastive_weight: float = Field(0.0, ge=0)
    """Weight of the contrastive loss; 0 disables it."""

    temperature: float = Field(1.0, gt=0)
    """Temperature of the contrastive loss."""


def contrast(
    options: Contrast, vectors_MH: Tensor, keys: Keys, rows: slice, *, is_cosine: bool
) -> dict[str, Tensor]:
    """The rows' shares of the mean of L_co over the batch, weighted; nothing if the weight is 0."""
    if options.contrastive_weight == 0:
        return {}
    if is_cosine:
        vectors_MH = F.normalize(vectors_MH, dim=-1)
    scores_RM = vectors_MH[rows] @ vectors_MH.T / options.temperature
    everyone = torch.arange(len(vectors_MH), device=vectors_MH.device)
    mine, is_self = keys[rows], everyone[rows][:, None] == everyone
    is_partner = (mine.pair[:, None] == keys.pair) & ~is_self
    left_out = is_self | _false_negatives(mine, keys, is_partner)
    scores_RM = scores_RM.masked_fill(left_out, float("-inf"))
    loss = F.cross_entropy(scores_RM, is_partner.int().argmax(dim=1), reduction="sum") / len(vectors_MH)
    return {"contrastive": options.contrastive_weight * loss}


def _false_negatives(mine: Keys, others: Keys, is_own: Tensor) -> Tensor:
    """[R, M] which of the others are no negatives, except a row's `own`: those with its text or its partner's, and those
    whose partner has its text."""
    is_left_out = mine.text[:, None] == others.text
    is_left_out |= (mine.partner[:, None] == others.text) | (mine.text[:, None] == others.partner)
    return is_left_out & ~is_own


class Contrasting:
    """Base class of methods with this loss, before `Objective`."""

    options: Contrast
    common: Common

    def contrast(self, vectors: Tensor, keys: Keys, rows: slice) -> dict[str, Tensor]:
        return contrast(self.options, vectors, keys, rows, is_cosine=self.common.similarity == "cosine")
