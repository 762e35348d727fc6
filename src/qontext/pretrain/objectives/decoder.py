"""Decoders with their own architecture: the autoregressive one, the backbone's settings, and attention with dropout.

Shapes: N sequences, A heads, Q asking and T seen positions, D size of a head, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from qontext.models.encoder import Encoder
from qontext.models.load import seeded


@dataclass(frozen=True)
class Settings:
    """The settings of the backbone's layers, which the decoders copy."""

    size: int
    heads: int
    width: int
    activation: Callable[[Tensor], Tensor]
    norm_eps: float
    dropout: float
    attention_dropout: float
    deviation: float
    """Standard deviation of new weights."""

    @staticmethod
    def of(encoder: Encoder) -> Settings:
        config, family = encoder.config, encoder.family
        return Settings(
            size=encoder.hidden_size,
            heads=config.num_attention_heads,
            width=getattr(config, family.width),
            activation=ACT2FN[getattr(config, family.activation)],
            norm_eps=float(getattr(config, family.norm_eps, 1e-12)),
            dropout=float(getattr(config, family.dropouts[0])),
            attention_dropout=float(getattr(config, family.dropouts[-1])),
            deviation=float(config.initializer_range),
        )

    def norm(self) -> nn.LayerNorm:
        return nn.LayerNorm(self.size, self.norm_eps)

    def linear(self, inputs: int, outputs: int, deviation: float | None = None) -> nn.Linear:
        """A new layer whose weights are drawn from N(0, deviation) and whose biases are 0."""
        linear = nn.Linear(inputs, outputs)
        nn.init.normal_(linear.weight, std=self.deviation if deviation is None else deviation)
        nn.init.zeros_(linear.bias)
        return linear


def attend(
    query_NQH: Tensor, key_NTH: Tensor, value_NTH: Tensor, visible: Tensor, heads: int, dropout: nn.Dropout
) -> Tensor:
    """[N, Q, H] attention over the positions that are `visible`, [Q, T] or [N, Q, T]; `dropout` is of its weights."""
    query, key, value = (
        part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (query_NQH, key_NTH, value_NTH)
    )
    visible = visible if visible.ndim == 2 else visible[:, None]
    if dropout.training and dropout.p > 0:
        scores_NAQT = (query * query.shape[-1] ** -0.5) @ key.transpose(2, 3)
        scores_NAQT = scores_NAQT.masked_fill(~visible, torch.finfo(scores_NAQT.dtype).min)
        attended: Tensor = dropout(scores_NAQT.softmax(3).to(value.dtype)) @ value
    else:
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
    return attended.transpose(1, 2).flatten(2)


class AutoregressiveDecoder(nn.Module):
    """The decoder of QaC-CoT-MAE's released code: pre-norm blocks that see the [CLS] and a few tokens.

        x ← dropout(input)
        x ← x + Attention(norm(x));  x ← x + FFN(norm(x))      each block
        output = norm(x)

    Position i sees position 0, which holds the passage's [CLS] vector, and positions i - window + 1 … i. Activation (for
    BERT the exact GELU), the norms' epsilon and the dropout rates are the backbone's; the feed-forward layer is four times
    as wide as the hidden size. Output projections start from N(0, σ / √(2N)), N the number of blocks, as in GPT-2.
    """

    def __init__(self, settings: Settings, blocks: int, window: int, seed: int) -> None:
        super().__init__()
        self.window = window
        self.dropout = nn.Dropout(settings.dropout)
        self.norm = settings.norm()
        with seeded(seed):
            self.blocks = nn.ModuleList(DecoderBlock(settings, blocks) for _ in range(blocks))

    def forward(self, hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
        """[N, T, H] → [N, T, H]. Padding is at the end, where no earlier position sees it."""
        hidden = self.dropout(hidden_NTH)
        visible_TT = self.visible(hidden.shape[1], hidden.device)
        for block in self.blocks:
            hidden = block(hidden, visible_TT)
        normed: Tensor = self.norm(hidden)
        return normed

    def visible(self, length: int, device: torch.device) -> Tensor:
        """[T, T] which positions (columns) each position (row) sees."""
        place = torch.arange(length, device=device)
        distance = place[:, None] - place
        return ((distance >= 0) & (distance < self.window)) | (place == 0)


class DecoderBlock(nn.Module):
    def __init__(self, settings: Settings, blocks: int) -> None:
        super().__init__()
        size, small = settings.size, settings.deviation / math.sqrt(2 * blocks)
        self.heads, self.activation = settings.heads, settings.activation
        self.before_attention, self.before_ffn = settings.norm(), settings.norm()
        self.qkv, self.out = settings.linear(size, 3 * size), settings.linear(size, size, small)
        self.up, self.down = settings.linear(size, 4 * size), settings.linear(4 * size, size, small)
        self.dropout, self.attention_dropout = (
            nn.Dropout(settings.dropout),
            nn.Dropout(settings.attention_dropout),
        )

    def forward(self, hidden: Tensor, visible_TT: Tensor) -> Tensor:
        query, key, value = self.qkv(self.before_attention(hidden)).chunk(3, dim=-1)
        attended = attend(query, key, value, visible_TT, self.heads, self.attention_dropout)
        hidden = hidden + self.dropout(self.out(attended))
        out: Tensor = hidden + self.dropout(self.down(self.activation(self.up(self.before_ffn(hidden)))))
        return out
