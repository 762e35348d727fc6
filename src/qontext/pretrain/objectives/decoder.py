"""Shared by decoders with their own architecture: the backbone's settings, and attention with dropout.

Shapes: N sequences, A heads, Q asking and T seen positions, D size of a head, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from qontext.models.encoder import Encoder


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
