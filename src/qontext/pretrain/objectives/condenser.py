"""Condenser: a head that must predict the masked tokens from early layers and only the last [CLS].

    head = Layers([ h^L[CLS] ; h^M[1..n] ])        N fresh layers, tapped at the early layer M = L / 2
    L    = CE(φ(head), x) + w · CE(φ(h^L), x)      on masked positions; the second term is the "late MLM"

Gao & Callan 2021; section 3.1 of Gao & Callan 2022. The head is saved beside the checkpoint, so that
coCondenser can continue with it, and dropped for fine-tuning.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from qontext.frame import config
from qontext.models.encoder import Encoder
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.base import Common, HeadLayers, Needs, Objective, Output
from qontext.pretrain.objectives.mlm import MlmOptions


class Weights(config.Options):
    """Options of methods with a Condenser head besides the encoder's own prediction."""

    late_mlm_weight: float = Field(1.0, ge=0)
    """Weight of the encoder's own masked language model loss; 0 disables it."""

    head_weight: float = Field(1.0, ge=0)
    """Weight of the loss of the condenser head; 0 disables it."""


class CondenserOptions(HeadLayers, Weights, MlmOptions):
    """The options of MLM, and those of the head."""


class Condenser(Objective):
    Options: ClassVar[type[config.Options]] = CondenserOptions
    options: Any
    head_kind = "condenser"

    def __init__(self, encoder: Encoder, options: Any, common: Common) -> None:
        super().__init__(encoder, options, common)
        self.early = max(1, encoder.num_layers // 2)
        if not encoder.family.has_layers:  # and the weight of a head is 0
            return
        self.head = encoder.fresh_layers(options.layers(2), options.copied_layers(), seed=common.seed)

    @staticmethod
    def needs(options: Any) -> Needs:
        if options.head_weight > 0:
            return "layers"
        return "output" if getattr(options, "contrastive_weight", 0) > 0 else "prediction"

    @staticmethod
    def layout(options: Any, common: Common) -> Layout:
        return Layout("anchor", "nothing", options.encoder_mask)

    def forward(self, batch: MicroBatch) -> Output:
        text = batch.encoder
        layers = (self.early, -1) if self.options.head_weight > 0 else (-1,)
        *early, last = self.encoder(text.ids, text.mask, layers=layers)
        vector = self.vector(last, text.mask)
        losses = self.decode("head_mlm", vector, text, *early) | self.mlm("late_mlm", last, text)
        return Output(losses, self.encoder.project(vector))
