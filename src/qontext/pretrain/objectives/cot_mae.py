"""CoT-MAE: a weak decoder rebuilds the context from the passage's [CLS] and what is left of the context.

    for a pair (A, B):
    L_smlm = CE(φ(h^L_A), A)                                     A masked at 30 %
    dec    = Layers([ h^L_A[CLS] ; E(B)[1..n] ])                 B masked at 45 %, E = the full embedding output
    L_cmlm = CE(φ(dec), B)
    L      = L_smlm + L_cmlm, averaged over A→B and B→A          (for queries as contexts: A→B only)

Wu et al. 2022 (CoT-MAE); with queries as contexts this is QaC-CoT-MAE (Wu et al. 2023), whose released code runs
the autoregressive decoder instead: nothing masked, the next token predicted at each place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from qontext.engine.encoder import Encoder
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.autoregressive import AutoregressiveDecoder
from qontext.pretrain.objectives.base import Objective, Output, with_first

if TYPE_CHECKING:
    from qontext.pretrain.config import PretrainConfig


class CotMae(Objective):
    head: nn.Module

    def __init__(self, encoder: Encoder, config: PretrainConfig) -> None:
        super().__init__(encoder, config)
        self.head_kind = f"{config.decoder} decoder"
        if config.decoder == "autoregressive":
            self.head = AutoregressiveDecoder(
                encoder.config, config.decoder_layers_or(1), config.window, config.seed, config.dropout
            )
        else:
            self.head = encoder.fresh_layers(
                config.decoder_layers_or(2), config.copied_layers(), seed=config.seed
            )

    @staticmethod
    def layout(config: PretrainConfig) -> Layout:
        return Layout(
            "both" if config.both_directions() else "anchor",
            "other",
            config.encoder_rate(0.30),
            config.decoder_rate(0.45),
            "next" if config.decoder == "autoregressive" else "masked",
            config.average("tokens"),
        )

    def forward(self, batch: MicroBatch) -> Output:
        passage, context = batch.encoder, batch.decoder
        assert context is not None
        (last,) = self.encoder(passage.ids, passage.mask)
        vector = self.vector(last, passage.mask)
        losses = {}
        if self.config.late_mlm_weight > 0:
            losses["encoder_mlm"] = self.config.late_mlm_weight * self.predict(last, passage)
        if self.config.head_weight > 0:
            decoded = self.head(with_first(vector, self.encoder.embed(context.ids)), context.mask)
            losses["context_mlm"] = self.config.head_weight * self.predict(decoded, context)
        return Output(losses, vector)
