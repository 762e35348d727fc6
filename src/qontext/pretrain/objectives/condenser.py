"""Condenser: a head that must predict the masked tokens from early layers and the last [CLS] alone.

    head = Layers([ h^L[CLS] ; h^M[1..n] ])        N fresh layers, tapped at the early layer M
    L    = CE(φ(head), x) + w · CE(φ(h^L), x)      on masked positions; the second term is the "late MLM"

Gao & Callan 2021; section 3.1 of Gao & Callan 2022. The head is kept beside the checkpoint, so that coCondenser
can go on with it, and is dropped for fine-tuning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qontext.engine.encoder import Encoder
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.base import Objective, Output, with_first

if TYPE_CHECKING:
    from qontext.pretrain.config import PretrainConfig


class Condenser(Objective):
    head_kind = "condenser"

    def __init__(self, encoder: Encoder, config: PretrainConfig) -> None:
        super().__init__(encoder, config)
        self.early = config.early_layer(encoder.num_layers)
        self.head_reads = f"layer {self.early}"
        self.head = encoder.fresh_layers(
            config.decoder_layers_or(2), config.copied_layers(), seed=config.seed
        )

    @staticmethod
    def layout(config: PretrainConfig) -> Layout:
        return Layout("anchor", "nothing", config.encoder_rate(0.15), average=config.average("tokens"))

    def forward(self, batch: MicroBatch) -> Output:
        text = batch.encoder
        early, last = self.encoder(text.ids, text.mask, layers=(self.early, -1))
        vector = self.vector(last, text.mask)
        losses = {}
        if self.config.head_weight > 0:
            head = self.head(with_first(vector, early), text.mask)
            losses["head_mlm"] = self.config.head_weight * self.predict(head, text)
        if self.config.late_mlm_weight > 0:
            losses["late_mlm"] = self.config.late_mlm_weight * self.predict(last, text)
        return Output(losses, vector)
