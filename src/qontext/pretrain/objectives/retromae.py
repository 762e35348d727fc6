"""RetroMAE: one layer rebuilds every token of the text from its [CLS] and a random half of the other tokens.

    encoder  L_enc = CE(φ(h^L), x)                                   x masked at 30 %
    queries  H₁ = [ c + p_1 … c + p_n ]                              c = h^L[CLS], p = position embeddings
    content  H₂ = [ c ; E(x)[1..n] ]                                 x unmasked
    decoder  A = Attention(H₁, H₂, H₂; S),  S_ij ∈ {0, 1}            i sees j = 0 and a sampled half of the j ≠ i
    L_dec = CE(φ(FFN(A + H₁)), x) at every token;    L = L_enc + L_dec

Xiao, Liu et al. 2022, section 3.3 ("enhanced decoding"). Which tokens a position sees is drawn for each row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qontext.engine.encoder import Encoder
from qontext.engine.load import seeded
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.base import Objective, Output, with_first

if TYPE_CHECKING:
    from qontext.pretrain.config import PretrainConfig


class RetroMae(Objective):
    head_kind = "enhanced"

    def __init__(self, encoder: Encoder, config: PretrainConfig) -> None:
        super().__init__(encoder, config)
        with seeded(config.seed):
            self.head = EnhancedDecoder(
                encoder.hidden_size,
                encoder.config.num_attention_heads,
                encoder.max_length,
                config.decoder_rate(0.5),
            )

    @staticmethod
    def layout(config: PretrainConfig) -> Layout:
        return Layout(
            "anchor", "self", config.encoder_rate(0.30), target="every", average=config.average("tokens")
        )

    def forward(self, batch: MicroBatch) -> Output:
        text, whole = batch.encoder, batch.decoder
        assert whole is not None
        (last,) = self.encoder(text.ids, text.mask)
        vector = self.vector(last, text.mask)
        decoded = self.head(vector, with_first(vector, self.encoder.embed(whole.ids)), whole.mask)
        losses = {
            "encoder_mlm": self.config.late_mlm_weight * self.predict(last, text),
            "decoder_mlm": self.config.head_weight * self.predict(decoded, whole),
        }
        return Output(losses, vector)


class EnhancedDecoder(nn.Module):
    """One post-norm layer whose queries are [CLS] + position, and whose positions each see their own sample."""

    def __init__(self, size: int, heads: int, positions: int, hide_rate: float) -> None:
        super().__init__()
        self.heads, self.hide_rate = heads, hide_rate
        self.positions = nn.Embedding(positions, size)
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.after_attention, self.after_ffn = nn.LayerNorm(size), nn.LayerNorm(size)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, first_NH: Tensor, content_NTH: Tensor, mask_NT: Tensor) -> Tensor:
        n, t, h = content_NTH.shape
        asked = first_NH[:, None] + self.positions.weight[:t]
        parts = (self.query(asked), self.key(content_NTH), self.value(content_NTH))
        query, key, value = (part.view(n, t, self.heads, h // self.heads).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=self.sample(mask_NT)[:, None])
        hidden = self.after_attention(asked + self.out(seen.transpose(1, 2).reshape(n, t, h)))
        rebuilt: Tensor = self.after_ffn(hidden + self.down(F.gelu(self.up(hidden))))
        return rebuilt

    def sample(self, mask_NT: Tensor) -> Tensor:
        """[N, T, T] what each position sees: the first, and of the other real tokens but itself a random share."""
        n, t = mask_NT.shape
        kept = torch.rand(n, t, t, device=mask_NT.device) >= self.hide_rate
        place = torch.arange(t, device=mask_NT.device)
        return (kept & mask_NT[:, None] & (place[:, None] != place)) | (place == 0)
