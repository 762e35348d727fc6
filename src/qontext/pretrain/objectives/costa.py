"""COSTA: the vector of a text is close to pooled spans of the same text, and far from other texts and their spans.

    z_i    = tanh(W h_i + b)                                          of the text, h_i its vector
    g_ip   = mean of h^L over the tokens of its span p                4 lengths × k spans
    L_i    = -1/(4 k) · Σ_p log  exp(s(z_i, g_ip)) / ( Σ_{j ≠ i} exp(s(z_i, z_j)) + Σ_{j, q} exp(s(z_i, g_jq)) )
    L      = MLM  +  w · mean over texts of L_i                       s = cosine / τ;  j over all texts of all ranks

A span has 1–4, 4–16, 16–64 or 64–128 tokens, at most the text's: shortest + (longest - shortest) · u, u ~ Beta(4, 2), at a
uniform place of the masked text, with its title and separator. Texts that say the same are not each other's negatives.

Ma et al. 2022. Its released code has no pre-training with which this could be compared: the lengths, k = 5, τ = .1, w = .1,
the cosine (whatever --similarity is) and the projection are the paper's as far as we know.

Shapes: N rows, T tokens, H hidden size, S spans of a text; M texts of the batch, R of a slice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from qontext.frame import config
from qontext.models.encoder import Encoder
from qontext.models.load import seeded
from qontext.models.tokenizer import frame_of
from qontext.pretrain.batches import Keys, Layout, MicroBatch
from qontext.pretrain.objectives.base import Common, Objective, Output
from qontext.training.randomness import U64, uniform

LENGTHS = ((1, 4), (4, 16), (16, 64), (64, 128))
"""Shortest and longest spans: of words, phrases, sentences and paragraphs."""


class CostaOptions(config.Options):
    encoder_mask: float = Field(0.15, ge=0, le=1)
    """Share of masked tokens (at least one token). 0 disables the MLM term."""

    late_mlm_weight: float = Field(1.0, ge=0)
    """Weight of the masked language model loss; 0 disables it."""

    contrastive_weight: float = Field(0.1, gt=0)
    """Weight of the contrastive loss between texts and spans."""

    temperature: float = Field(0.1, gt=0)
    """Temperature of the contrastive loss."""

    spans: int = Field(5, ge=1, le=100)
    """Number of spans of each of the four lengths. Memory grows with it."""


class Costa(Objective):
    Options = CostaOptions
    options: CostaOptions
    contrastive = True
    head_kind = "projection for spans"

    def __init__(self, encoder: Encoder, options: CostaOptions, common: Common) -> None:
        super().__init__(encoder, options, common)
        size = encoder.hidden_size
        with seeded(common.seed):
            self.head = nn.Linear(size, size)
            nn.init.normal_(self.head.weight, std=getattr(encoder.config, "initializer_range", 0.02))
            nn.init.zeros_(self.head.bias)
        frame = frame_of(encoder.tokenizer, encoder.prompts["passage"])
        self.around = len(frame.before), len(frame.after)

    @staticmethod
    def layout(options: CostaOptions, common: Common) -> Layout:
        return Layout("anchor", "nothing", options.encoder_mask)

    def forward(self, rows: MicroBatch) -> Output:
        spans = self.spans(rows.encoder.mask.sum(1), rows.row_keys)
        last, vector = self.encode(rows.encoder)
        return Output(self.mlm("mlm", last, rows.encoder), self.group(last, vector, *spans))

    def represent(self, rows: MicroBatch) -> Tensor:
        spans = self.spans(rows.encoder.mask.sum(1), rows.row_keys)
        return self.group(*self.encode(rows.encoder), *spans)

    def group(self, last_NTH: Tensor, vector_NH: Tensor, first: Tensor, end: Tensor) -> Tensor:
        """[N, 1 + S, H] the text and its spans, each of length 1."""
        place_T = torch.arange(last_NTH.shape[1], device=last_NTH.device)
        is_in_NST = (place_T >= first[..., None]) & (place_T < end[..., None])
        means_NSH = is_in_NST.to(last_NTH.dtype) @ last_NTH / (end - first)[..., None]
        text_NH = torch.tanh(self.head(vector_NH))
        return F.normalize(torch.cat([text_NH[:, None].float(), means_NSH.float()], 1), dim=-1)

    def spans(self, lengths_N: Tensor, keys_N: U64) -> tuple[Tensor, Tensor]:
        """[N, S] where each span begins and ends: a function of the row's key and its number of tokens."""
        before, after = self.around
        number_S = np.arange(len(LENGTHS) * self.options.spans)
        shortest, longest = np.array(LENGTHS)[number_S % len(LENGTHS)].T
        draws_NS5 = uniform(0, "span", keys_N[:, None, None], number_S[:, None], np.arange(5))
        share_NS = np.sort(draws_NS5, -1)[..., 3]  # the fourth of five is Beta(4, 2)
        drawn_NS = np.rint(shortest + (longest - shortest) * share_NS).astype(np.int64)
        where_NS = uniform(0, "place", keys_N[:, None], number_S).astype(np.float32)
        device = lengths_N.device
        own_N1 = (lengths_N[:, None] - before - after).clamp(min=1)
        length_NS = torch.minimum(_placed(drawn_NS, device), own_N1)
        last_NS = own_N1 - length_NS
        first_NS = before + torch.minimum((_placed(where_NS, device) * (last_NS + 1)).long(), last_NS)
        return first_NS, first_NS + length_NS

    def contrast(self, groups_MGH: Tensor, keys: Keys, rows: slice) -> dict[str, Tensor]:
        """The rows' shares of the mean of L_i over the batch, weighted."""
        texts_RH, count = groups_MGH[rows, 0], len(groups_MGH)
        scores_RMG = torch.einsum("rh,mgh->rmg", texts_RH, groups_MGH) / self.options.temperature
        everyone = torch.arange(count, device=texts_RH.device)
        is_self_RM = everyone[rows][:, None] == everyone
        is_same_RM = (keys.text[rows][:, None] == keys.text) & ~is_self_RM
        scores_RMG = scores_RMG.masked_fill(is_same_RM[..., None], -torch.inf)
        is_text_G = torch.arange(groups_MGH.shape[1], device=texts_RH.device) == 0
        scores_RMG = scores_RMG.masked_fill(is_self_RM[..., None] & is_text_G, -torch.inf)
        own_RS = scores_RMG[torch.arange(len(texts_RH), device=texts_RH.device), everyone[rows], 1:]
        losses_R = scores_RMG.flatten(1).logsumexp(1) - own_RS.mean(1)
        return {"contrastive": self.options.contrastive_weight * losses_R.sum() / count}


def _placed(array: Any, device: torch.device) -> Tensor:
    """The array on the device, without waiting for it."""
    tensor = torch.from_numpy(array)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
