"""DupMAE: RetroMAE, and a bag of words that the other tokens predict together.

    z_v     = max_j φ(h^L_j)_v                               over the tokens j after the first one, v of the vocabulary
    L_token = -1/|S| · Σ_{v ∈ S} log softmax(z)_v            S = the distinct ordinary tokens of the text, before masking
    L       = L_RetroMAE + w · L_token

Liu et al. 2023. What the tokens learn serves the vector only through the shared layers; the paper's retriever
also uses z itself.

Departure from the released code: it divides by the number of tokens rather than by |S|, the number of distinct ones.
The logits of all tokens are computed a few texts at a time, and again for the gradient, instead of being kept.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qontext.models.prediction import SCORES_PER_BLOCK
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.base import Common, Output
from qontext.pretrain.objectives.bow import bag_loss
from qontext.pretrain.objectives.retromae import RetroMae, RetroMaeOptions


class DupMaeOptions(RetroMaeOptions):
    token_weight: float = Field(1.0, ge=0)
    """Weight of the bag-of-words loss of the tokens; 0 disables it."""


class DupMae(RetroMae):
    Options = DupMaeOptions
    options: DupMaeOptions

    @staticmethod
    def layout(options: RetroMaeOptions, common: Common) -> Layout:
        return replace(RetroMae.layout(options, common), bag="self")

    def forward(self, batch: MicroBatch) -> Output:
        text, whole, bag = batch.encoder, batch.decoder, batch.bag
        assert whole is not None and bag is not None
        last, vector = self.encode(text)
        losses = self.mlm("encoder_mlm", last, text) | self.reconstruct(vector, whole)
        if self.options.token_weight > 0:
            highest = self.highest(last[bag.texts], text.mask[bag.texts])
            losses["token_bag"] = self.options.token_weight * bag_loss(highest, bag)
        return Output(losses, vector)

    def highest(self, last_NTH: Tensor, mask_NT: Tensor) -> Tensor:
        """z [N, V]."""
        rows = max(1, SCORES_PER_BLOCK // (mask_NT.shape[1] * self.encoder.vocab_size))
        parts = [
            checkpoint(self._highest, hidden, mask, use_reentrant=False, preserve_rng_state=False)
            for hidden, mask in zip(last_NTH[:, 1:].split(rows), mask_NT[:, 1:].split(rows), strict=True)
        ]
        return torch.cat(parts)

    def _highest(self, hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
        logits_NTV = self.encoder.mlm_logits(hidden_NTH).masked_fill(~mask_NT[:, :, None], -torch.inf)
        return logits_NTV.amax(1)
