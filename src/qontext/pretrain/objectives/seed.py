"""SEED: a weak autoregressive decoder reconstructs the text itself from its [CLS].

    L_mlm = CE(φ(h^L), x)                                                 x masked at 15 %
    dec   = Blocks([ h^L[CLS] ; E(x)[1..n] ])                             x unmasked; a position sees [CLS] and 2 tokens
    L_dec = CE(φ(dec_t), x_{t+1}) at every token;    L = L_mlm + L_dec

Lu et al. 2021: three blocks and an attention span of two tokens. The decoder is that of query-as-context's released code
(`cot-mae --decoder autoregressive`), so that the two differ in what is reconstructed: the text, or its context. The blocks
normalize before attention, and the prediction head is the encoder's, as there.
"""

from __future__ import annotations

from pydantic import Field

from qontext.models.encoder import Encoder
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.autoregressive import AutoregressiveDecoder
from qontext.pretrain.objectives.base import Objective, Output, with_first
from qontext.pretrain.objectives.decoder import Settings
from qontext.pretrain.objectives.options import Common, Weights


class SeedOptions(Weights):
    encoder_mask: float = Field(0.15, ge=0, le=1)
    """Share of masked tokens in the encoder (at least one token). 0 disables the encoder's own predictions."""

    decoder_layers: int = Field(3, ge=1, le=24)
    """Number of blocks of the decoder."""

    window: int = Field(2, ge=1, le=100_000)
    """Attention window of the decoder in tokens, including the position itself; [CLS] is always visible."""


class Seed(Objective):
    Options = SeedOptions
    options: SeedOptions
    head_kind = "autoregressive decoder"

    def __init__(self, encoder: Encoder, options: SeedOptions, common: Common) -> None:
        super().__init__(encoder, options, common)
        self.head = AutoregressiveDecoder(
            Settings.of(encoder), options.decoder_layers, options.window, common.seed
        )

    @staticmethod
    def layout(options: SeedOptions, common: Common) -> Layout:
        return Layout("anchor", "self", options.encoder_mask, target="next")

    def forward(self, batch: MicroBatch) -> Output:
        text, whole = batch.encoder, batch.decoder
        assert whole is not None
        (last,) = self.encoder(text.ids, text.mask)
        vector = self.vector(last, text.mask)
        losses = {}
        if self.options.late_mlm_weight > 0:
            losses["encoder_mlm"] = self.options.late_mlm_weight * self.predict(last, text)
        if self.options.head_weight > 0:
            decoded = self.head(with_first(vector, self.encoder.embed(whole.ids)), whole.mask)
            losses["decoder_lm"] = self.options.head_weight * self.predict(decoded, whole)
        return Output(losses, vector)
