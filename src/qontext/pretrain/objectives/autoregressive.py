"""The autoregressive decoder of QaC-CoT-MAE's released code: pre-norm blocks that see the [CLS] and a few tokens.

    x ← dropout(input)
    x ← x + Attention(norm(x));  x ← x + FFN(norm(x))      each block
    output = norm(x)

Position i sees position 0, which holds the passage's [CLS] vector, and positions i - window + 1 … i.
Output projections start from N(0, 0.02 / √(2N)), N the number of blocks, as in GPT-2.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qontext.engine.load import seeded


class AutoregressiveDecoder(nn.Module):
    def __init__(
        self, config: Any, blocks: int, window: int, seed: int, dropout: float | None = None
    ) -> None:
        super().__init__()
        self.window = window
        rate = float(getattr(config, "hidden_dropout_prob", 0.1)) if dropout is None else dropout
        self.dropout = nn.Dropout(rate)
        self.norm = nn.LayerNorm(config.hidden_size)
        with seeded(seed):
            self.blocks = nn.ModuleList(
                Block(config.hidden_size, config.num_attention_heads, rate, blocks) for _ in range(blocks)
            )

    def forward(self, hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
        """[N, T, H] → [N, T, H]. Padding stands at the end, where no earlier position sees it."""
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
    def __init__(self, size: int, heads: int, dropout: float, blocks: int) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.before_attention, self.before_ffn = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.dropout = nn.Dropout(dropout)
        for linear in (self.qkv, self.out, self.up, self.down):
            projects = linear in (self.out, self.down)
            nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * blocks) if projects else 0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, hidden: Tensor, visible_TT: Tensor) -> Tensor:
        n, t, h = hidden.shape
        query, key, value = (
            part.view(n, t, self.heads, h // self.heads).transpose(1, 2)
            for part in self.qkv(self.before_attention(hidden)).split(h, dim=-1)
        )
        dropout = self.rate if self.training else 0.0
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=visible_TT, dropout_p=dropout)
        hidden = hidden + self.dropout(self.out(seen.transpose(1, 2).reshape(n, t, h)))
        out: Tensor = hidden + self.dropout(
            self.down(F.gelu(self.up(self.before_ffn(hidden)), approximate="tanh"))
        )
        return out
