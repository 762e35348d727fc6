"""Condenser: a head that must predict the masked tokens from early layers and only the last [CLS].

    head = Layers([ h^L[CLS] ; h^M[1..n] ])        N fresh layers, tapped at the early layer M
    L    = CE(φ(head), x) + w · CE(φ(h^L), x)      on masked positions; the second term is the "late MLM"

Gao & Callan 2021; section 3.1 of Gao & Callan 2022. The head is saved beside the checkpoint, so that
coCondenser can continue with it, and dropped for fine-tuning.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from qontext.frame import config
from qontext.frame.errors import QontextError
from qontext.models.encoder import Encoder
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.base import Common, HeadLayers, Needs, Objective, Output, Weights
from qontext.pretrain.objectives.mlm import MlmOptions


class Head(HeadLayers, Weights):
    """The input layer of the Condenser head."""

    early_layer_number: int | None = Field(None, ge=1)
    """Number M of the early layer that feeds the head. Default: half of the layers."""

    def early_layer(self, layers: int) -> int:
        """M, for an encoder with this number of layers."""
        number = self.early_layer_number or max(1, layers // 2)
        if number > layers:
            raise QontextError(f"early_layer_number = {number}, but the encoder has only {layers} layers")
        return number


class CondenserOptions(Head, MlmOptions):
    """The options of MLM, and those of the head."""


class Condenser(Objective):
    Options: ClassVar[type[config.Options]] = CondenserOptions
    options: Head
    head_kind = "condenser"

    def __init__(self, encoder: Encoder, options: Head, common: Common) -> None:
        super().__init__(encoder, options, common)
        self.early = options.early_layer(encoder.num_layers)
        if not encoder.family.has_layers:  # and the weight of a head is 0
            return
        self.head_reads = f"layer {self.early}"
        self.head = encoder.fresh_layers(options.layers(2), options.copied_layers(), seed=common.seed)

    @staticmethod
    def needs(options: Head) -> Needs:
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
        return Output(losses, self.contrasted(vector, last, text))
