"""CoT-LM: a decoder predicts the context token by token, after the vector of the passage.

    h_x      = h^L_A at the last token of the passage A
    v        = W h_x / rms(h_x)                                      W = rms(E) · I at the start, E = the word embeddings
    L_clm    = -1/n · Σ_i log softmax(φ(h^L([ v ; E(b_1 … b_{i-1}) ])))_{b_i}        B = b_1 … b_n the context, with its end
    L_lm     = CE(φ(h^L_A), A's next tokens)
    L        = w_lm · L_lm + w · L_clm + w_co · L_co, averaged over A→B and B→A       (for queries as contexts: A→B only)

No paper has it: it is CoT-MAE's idea, that a passage's vector must suffice to reconstruct its context, in the form that fits
a decoder. One network encodes and decodes, and φ is its language-model head: nothing of the passage reaches the context but
v, which stands where a first token would. A decoder that was made bidirectional still decodes from left to right, and has no
L_lm. (CoT-MAE: Wu et al. 2022; query-as-context: Wu et al. 2023.)

L_co is coCondenser's contrastive loss, off by default. With it, both members of a pair are encoded.
"""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from qontext.frame.errors import QontextError
from qontext.models.encoder import Encoder
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.base import Common, Needs, Objective, Output, with_first
from qontext.pretrain.objectives.contrast import Contrast, Contrasting
from qontext.pretrain.texts import Text


class CotLmOptions(Contrast):
    late_mlm_weight: float = Field(1.0, ge=0)
    """Weight of the language-model loss of the passage itself; 0 disables it."""

    head_weight: float = Field(1.0, ge=0)
    """Weight of the loss of the context; 0 disables it."""

    directions: Literal["auto", "both", "forward"] = "auto"
    """Predict each member of a pair from the other, or only the context from the passage. Auto: both, unless contexts
    are, or may be, queries."""

    @model_validator(mode="after")
    def _has_a_loss(self) -> Self:
        if self.late_mlm_weight == self.head_weight == self.contrastive_weight == 0:
            raise QontextError("all three loss weights are 0")
        if self.contrastive_weight > 0 and self.directions == "forward":
            raise QontextError(
                "the contrastive loss needs the vectors of both members of a pair, but directions is 'forward'",
                remedy="Remove --directions or set --contrastive-weight 0.",
            )
        return self


class CotLm(Contrasting, Objective):
    Options = CotLmOptions
    options: CotLmOptions
    default_context = "near+olap+rand"
    head_kind = "projection"
    head: nn.Linear

    def __init__(self, encoder: Encoder, options: CotLmOptions, common: Common) -> None:
        super().__init__(encoder, options, common)
        self.contrastive = options.contrastive_weight > 0
        self.head = nn.Linear(encoder.hidden_size, encoder.hidden_size, bias=False)
        with torch.no_grad():
            words = encoder.embed(torch.arange(min(encoder.vocab_size, 1_000))[None])
            self.head.weight.copy_(torch.eye(encoder.hidden_size) * rms(words).mean())

    @staticmethod
    def needs(options: CotLmOptions) -> Needs:
        return "next"

    @staticmethod
    def layout(options: CotLmOptions, common: Common) -> Layout:
        goes_back = options.directions == "both" or options.contrastive_weight > 0
        if options.directions == "auto":
            goes_back |= not common.has_queries
        return Layout(
            "both" if goes_back else "anchor", "other", float(options.late_mlm_weight > 0), target="next"
        )

    def forward(self, batch: MicroBatch) -> Output:
        passage, context = batch.encoder, batch.decoder
        assert context is not None
        last, vector = self.encode(passage)
        losses = self.mlm("passage_mlm", last, passage)
        if self.options.head_weight > 0:
            losses["context_lm"] = self.options.head_weight * self.predict(
                self.continued(vector, context), context
            )
        return Output(losses, self.encoder.project(vector))

    def continued(self, vector_NH: Tensor, text: Text) -> Tensor:
        """[N, T, H] the last layer over [ v ; E(b) ], from left to right."""
        first_NH = self.head((vector_NH / rms(vector_NH)).to(self.head.weight.dtype))
        return self.encoder.continued(with_first(first_NH, self.encoder.embed(text.ids)), text.mask)


def rms(x: Tensor) -> Tensor:
    """The root of the mean square, over the last dimension."""
    return x.float().square().mean(-1, keepdim=True).sqrt()
