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

from qontext.frame import config
from qontext.models.encoder import Encoder
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.base import Common, Objective, Output
from qontext.pretrain.objectives.decoder import AutoregressiveDecoder, Settings


class SeedOptions(config.Options):
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
        last, vector = self.encode(text)
        losses = self.mlm("encoder_mlm", last, text) | self.decode("decoder_lm", vector, whole)
        return Output(losses, vector)
