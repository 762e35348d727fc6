"""The autoregressive decoder of QaC-CoT-MAE's released code: pre-norm blocks that see the [CLS] and a few tokens.

    x ← dropout(input)
    x ← x + Attention(norm(x));  x ← x + FFN(norm(x))      each block
    output = norm(x)

Position i sees position 0, which holds the passage's [CLS] vector, and positions i - window + 1 … i. Activation (for
BERT the exact GELU), the norms' epsilon and the dropout rates are the backbone's; the feed-forward layer is four times
as wide as the hidden size. Output projections start from N(0, σ / √(2N)), N the number of blocks, as in GPT-2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qontext.models.load import seeded
from qontext.pretrain.objectives.decoder import Settings, attend


class AutoregressiveDecoder(nn.Module):
    def __init__(self, settings: Settings, blocks: int, window: int, seed: int) -> None:
        super().__init__()
        self.window = window
        self.dropout = nn.Dropout(settings.dropout)
        self.norm = settings.norm()
        with seeded(seed):
            self.blocks = nn.ModuleList(Block(settings, blocks) for _ in range(blocks))

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


class Block(nn.Module):
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
