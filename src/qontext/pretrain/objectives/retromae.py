"""RetroMAE: one layer reconstructs every token of the text from its [CLS] and a random half of the other tokens.

    encoder  L_enc = CE(φ(h^L), x)                                   x masked at 30 %
    queries  H₁ = [ c + p_0 … c + p_n ]                              c = h^L[CLS], p = the encoder's position embeddings
    content  H₂ = [ c ; E(x)[1..n] ]                                 x unmasked, E = the full embedding output
    decoder  A = Attention(H₁, H₂, H₂; S),  S_ij ∈ {0, 1}            i sees [CLS], [SEP] and a sample of the j ≠ i
    L_dec = CE(φ(FFN(A + H₁)), x) at every token;    L = L_enc + L_dec

Xiao, Liu et al. 2022, section 3.3 ("enhanced decoding"), as its released code runs it: position embeddings, activation,
norms and dropout are the backbone's, biases start at 0, and each position is blind to itself and to whole words that
hold 50 % of the tokens.

Departures from the released code: it draws at most 256 samples per text, and one of them for each position;
here each position has its own sample. It counts [CLS] and [SEP] when it takes its 50 %, and rounds; here it
is 50 % of the other tokens, exact in expectation. A backbone without position embeddings (ModernBERT) gets a
table in the head.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from qontext.models.encoder import Encoder
from qontext.models.load import seeded
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.base import Common, Masks, Objective, Output, with_first
from qontext.pretrain.objectives.decoder import Settings, attend
from qontext.pretrain.texts import Text
from qontext.training.dropout import draw_uniform


class RetroMaeOptions(Masks):
    decoder_mask: float = Field(0.50, ge=0, le=1)
    """Share of tokens hidden from each position of the decoder."""


class RetroMae(Objective):
    Options = RetroMaeOptions
    options: RetroMaeOptions
    head_kind = "enhanced decoder"
    head: EnhancedDecoder

    def __init__(self, encoder: Encoder, options: RetroMaeOptions, common: Common) -> None:
        super().__init__(encoder, options, common)
        table = None if encoder.family.positions is not None else encoder.max_length
        with seeded(common.seed):
            self.head = EnhancedDecoder(Settings.of(encoder), options.decoder_mask, table)

    @staticmethod
    def layout(options: RetroMaeOptions, common: Common) -> Layout:
        return Layout("anchor", "self", options.encoder_mask, target="every")

    def forward(self, batch: MicroBatch) -> Output:
        text, whole = batch.encoder, batch.decoder
        assert whole is not None
        last, vector = self.encode(text)
        losses = self.mlm("encoder_mlm", last, text) | self.reconstruct(vector, whole)
        return Output(losses, vector)

    def reconstruct(self, vector_NH: Tensor, text: Text) -> dict[str, Tensor]:
        """L_dec."""
        assert text.words is not None
        content = with_first(vector_NH, self.encoder.embed(text.ids))
        visible = self.head.sample(text.words, text.mask)
        decoded = self.head(vector_NH, self.encoder.positions(text.ids.shape[1]), content, visible)
        return {"decoder_mlm": self.predict(decoded, text)}


class EnhancedDecoder(nn.Module):
    """One post-norm layer whose queries are [CLS] + position, and whose positions each see their own sample.

    `table` is the size of its own position table, for a backbone without one.
    """

    def __init__(self, settings: Settings, hide_rate: float, table: int | None) -> None:
        super().__init__()
        size = settings.size
        self.heads, self.activation, self.hide_rate = settings.heads, settings.activation, hide_rate
        self.query, self.key, self.value, self.out = (settings.linear(size, size) for _ in range(4))
        self.up, self.down = settings.linear(size, settings.width), settings.linear(settings.width, size)
        self.after_attention, self.after_ffn = settings.norm(), settings.norm()
        self.dropout, self.attention_dropout = (
            nn.Dropout(settings.dropout),
            nn.Dropout(settings.attention_dropout),
        )
        if table is not None:
            self.table = nn.Parameter(torch.randn(table, size) * settings.deviation)

    def forward(
        self, first_NH: Tensor, positions_TH: Tensor | None, content_NTH: Tensor, visible_NTT: Tensor
    ) -> Tensor:
        if positions_TH is None:
            positions_TH = self.table[: content_NTH.shape[1]]
        stream = first_NH[:, None] + positions_TH
        query, key, value = self.query(stream), self.key(content_NTH), self.value(content_NTH)
        attended = attend(query, key, value, visible_NTT, self.heads, self.attention_dropout)
        hidden = self.after_attention(stream + self.dropout(self.out(attended)))
        rebuilt: Tensor = self.after_ffn(hidden + self.dropout(self.down(self.activation(self.up(hidden)))))
        return rebuilt

    def sample(self, words_NT: Tensor, mask_NT: Tensor) -> Tensor:
        """[N, T, T] what each position sees. `words_NT` numbers the words of a text from 1, 0 = special or padding.

        A position's words are hidden in random order while they fit into the tokens to hide; the word that
        would overflow is hidden with the probability that makes the expectation exact.
        """
        n, t = words_NT.shape
        ordinary_NT = words_NT > 0
        dice_NTT = draw_uniform((n, t, t), words_NT.device).gather(2, words_NT[:, None].expand(-1, t, -1))
        dice_NTT = dice_NTT.masked_fill(~ordinary_NT[:, None], 1.0)
        before_NTT = torch.searchsorted(dice_NTT.sort(2).values, dice_NTT)  # tokens of the words drawn before
        size_NT = torch.zeros_like(words_NT).scatter_add(1, words_NT, ordinary_NT.long()).gather(1, words_NT)
        room_N11 = self.hide_rate * ordinary_NT.sum(1)[:, None, None]
        share_NT1 = draw_uniform((n, t, 1), words_NT.device)
        hidden = ordinary_NT[:, None] & (before_NTT + share_NT1 * size_NT[:, None] < room_N11)
        itself = torch.eye(t, dtype=torch.bool, device=words_NT.device)
        visible: Tensor = mask_NT[:, None] & ~hidden & ~itself
        visible[:, :, 0] = True
        return visible
