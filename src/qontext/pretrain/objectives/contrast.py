"""The contrastive loss between the members of pairs, of coCondenser and of methods that add it to their own losses.

    L_co(i) = -log  exp(s(h_i, h_i')) / Σ_{k ≠ i} exp(s(h_i, h_k))        k over all 2n rows of all ranks
    s       = <h, h'> / τ, or their cosine / τ

Gao & Callan 2022, equation 6. False negatives: a row with the same text as i or as i' is excluded from the sum; with
`mask_same_document`, so are the other rows of i's document.

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

    mask_same_document: bool = False
    """Do not use other passages of the same document as negatives."""


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
    partner = is_partner.int().argmax(dim=1)
    same_text = (mine.text[:, None] == keys.text) | (keys.text[partner][:, None] == keys.text)
    left_out = is_self | (same_text & ~is_partner)
    if options.mask_same_document:
        left_out |= (mine.document[:, None] == keys.document) & ~is_partner
    scores_RM = scores_RM.masked_fill(left_out, float("-inf"))
    loss = F.cross_entropy(scores_RM, partner, reduction="sum") / len(vectors_MH)
    return {"contrastive": options.contrastive_weight * loss}


class Contrasting:
    """Base class of methods with this loss, before `Objective`."""

    options: Contrast
    common: Common

    def contrast(self, vectors_MH: Tensor, keys: Keys, rows: slice) -> dict[str, Tensor]:
        return contrast(self.options, vectors_MH, keys, rows, is_cosine=self.common.similarity == "cosine")
