"""Bag of words: a text's vector alone predicts which tokens a text has, without a decoder.

    L_mlm    = CE(φ(h^L), x)                                     x masked at 30 %
    L_bow(T) = -1/|S| · Σ_{v ∈ S} log softmax(φ(h_x))_v          S = the distinct ordinary tokens of T, before masking
    L        = L_mlm + w(t) · L_bow + w_co · L_co

T is the encoded text itself (`target = passage`), the pair's other member (`context`), or both, averaged. With
`passage` this is Ma et al. 2024, "Drop your Decoder"; with `context` and queries as contexts, query-as-context without a
decoder. L_bow is a mean over texts, L_mlm one over masked tokens. w(t) falls from `bow_weight` to the share
`bow_weight_end` of it by half a cosine over the steps, as in the released code's command.

L_co is coCondenser's contrastive loss, off by default: with it, the same pairs train a generative and a contrastive loss.

Departure from the released code: with `vector = "mean"`, φ reads the mean vector; there, logits are averaged.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field
from torch import Tensor

from qontext.models.encoder import Encoder
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.base import Common, Masks, Needs, Objective, Output
from qontext.pretrain.objectives.contrast import Contrast, Contrasting
from qontext.pretrain.texts import Bag

BAGS: dict[str, Literal["self", "other", "pair"]] = {"passage": "self", "context": "other", "both": "pair"}


class BowOptions(Masks, Contrast):
    target: Literal["passage", "context", "both"] = "passage"
    """Whose words a vector predicts: those of its own text, of the pair's other member, or of both, averaged."""

    late_mlm_weight: float = Field(1.0, ge=0)
    """Weight of the encoder's own masked language model loss; 0 disables it."""

    bow_weight: float = Field(1.0, ge=0)
    """Weight of the bag-of-words loss at the first step; 0 disables it."""

    bow_weight_end: float = Field(0.1, ge=0)
    """Share of this weight at the last step, reached by half a cosine; 1 keeps it constant."""

    directions: Literal["auto", "both", "forward"] = "auto"
    """Predict words from each member of a pair, or only from the passage. Auto: both, unless contexts are, or may
    be, queries."""


class Bow(Contrasting, Objective):
    Options = BowOptions
    options: BowOptions
    default_context = "near+olap+rand"

    def __init__(self, encoder: Encoder, options: BowOptions, common: Common) -> None:
        super().__init__(encoder, options, common)
        self.contrastive = options.contrastive_weight > 0

    @staticmethod
    def needs(options: BowOptions) -> Needs:
        return "output" if options.bow_weight > 0 or options.contrastive_weight > 0 else "prediction"

    @staticmethod
    def layout(options: BowOptions, common: Common) -> Layout:
        goes_back = not common.has_queries if options.directions == "auto" else options.directions == "both"
        reads_pairs = options.target != "passage"
        return Layout(
            "both" if options.contrastive_weight > 0 or (reads_pairs and goes_back) else "anchor",
            "nothing",
            options.encoder_mask,
            bag=BAGS[options.target],
            bag_rows="encoded" if goes_back else "anchors",
        )

    def forward(self, batch: MicroBatch) -> Output:
        text, bag = batch.encoder, batch.bag
        assert bag is not None
        last, vector = self.encode(text)
        losses = self.mlm("encoder_mlm", last, text)
        if self.options.bow_weight > 0:
            losses["bow"] = self.weight() * bag_loss(self.encoder.mlm_logits(vector[bag.texts]), bag)
        return Output(losses, self.encoder.project(vector))

    def weight(self) -> float:
        """w(t)."""
        end = self.options.bow_weight_end
        return self.options.bow_weight * (end + (1 - end) * (1 + math.cos(math.pi * self.progress)) / 2)


def bag_loss(logits_RV: Tensor, bag: Bag) -> Tensor:
    """Σ weight · -log softmax(logits)_label: the micro-batch's share of the mean over the batch's bags."""
    return -(logits_RV.float().log_softmax(1)[bag.rows, bag.labels] * bag.weights).sum()
