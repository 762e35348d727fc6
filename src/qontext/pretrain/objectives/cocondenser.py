"""coCondenser: Condenser on both members of a pair, and a contrastive loss between them.

    L_co(i) = -log  exp(s(h_i, h_i')) / Σ_{k ≠ i} exp(s(h_i, h_k))        k over all 2n rows of all ranks
    L       = mean over rows of ( head MLM + late MLM )  +  w · mean over rows of L_co

h is the last layer's [CLS] as it is; s = <h, h'> / τ with τ = 1, or their cosine / τ. With queries as contexts this
is QaC-coCondenser. Gao & Callan 2022, equations 6–8; Wu et al. 2023 for query-as-context.

False negatives: a row with the same text as i or as i' is left out of the sum; with `mask_same_document`, so
are the other rows of i's document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from qontext.pretrain.batches import Layout
from qontext.pretrain.objectives.base import Keys
from qontext.pretrain.objectives.condenser import Condenser

if TYPE_CHECKING:
    from qontext.pretrain.config import PretrainConfig


class CoCondenser(Condenser):
    contrastive = True

    @staticmethod
    def layout(config: PretrainConfig) -> Layout:
        return Layout("both", "nothing", config.encoder_rate(0.15), average=config.average("spans"))

    def contrast(self, vectors: Tensor, keys: Keys, rows: slice) -> dict[str, Tensor]:
        if self.config.contrastive_weight == 0:
            return {}
        if self.config.similarity == "cosine":
            vectors = F.normalize(vectors, dim=-1)
        scores_RM = vectors[rows] @ vectors.T / self.config.temperature
        everyone = torch.arange(len(vectors), device=vectors.device)
        mine, is_self = keys[rows], everyone[rows][:, None] == everyone
        is_partner = (mine.pair[:, None] == keys.pair) & ~is_self
        partner = is_partner.int().argmax(dim=1)
        same_text = (mine.text[:, None] == keys.text) | (keys.text[partner][:, None] == keys.text)
        left_out = is_self | (same_text & ~is_partner)
        if self.config.mask_same_document:
            left_out |= (mine.document[:, None] == keys.document) & ~is_partner
        scores_RM = scores_RM.masked_fill(left_out, float("-inf"))
        loss = F.cross_entropy(scores_RM, partner, reduction="sum") / len(vectors)
        return {"contrastive": self.config.contrastive_weight * loss}
