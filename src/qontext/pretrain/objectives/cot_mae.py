"""CoT-MAE: a weak decoder reconstructs the context from the passage's [CLS] and the masked context.

    for a pair (A, B):
    L_smlm = CE(φ(h^L_A), A)                                     A masked at 30 %
    dec    = Layers([ h^L_A[CLS] ; E(B)[1..n] ])                 B masked at 45 %, E = the full embedding output
    L_cmlm = CE(φ(dec), B)
    L      = L_smlm + L_cmlm + w_co · L_co, averaged over A→B and B→A    (for queries as contexts: A→B only)

Each CE is the mean over the masked tokens of a batch, as in the released code; the paper's equations sum over them, where a
short query's decoder would weigh as much less as it has fewer tokens.

Wu et al. 2022 (CoT-MAE), equations 4–8; with queries as contexts this is QaC-CoT-MAE (Wu et al. 2023), whose released
code runs the autoregressive decoder instead: nothing masked, the next token predicted at each place.

L_co is coCondenser's contrastive loss, off by default. It needs the vectors of both members, so then both are
encoded, and each is reconstructed from the other, queries or not.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from torch import nn

from qontext.frame.errors import QontextError
from qontext.models.encoder import Encoder
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.base import Common, HeadLayers, Masks, Needs, Objective, Output
from qontext.pretrain.objectives.contrast import Contrast, Contrasting
from qontext.pretrain.objectives.decoder import AutoregressiveDecoder, Settings


class CotMaeOptions(HeadLayers, Masks, Contrast):
    decoder_mask: float = Field(0.45, ge=0, le=1)
    """Share of masked tokens in the decoder."""

    decoder: Literal["mlm", "autoregressive"] = "mlm"
    """Decoder: as in the CoT-MAE paper, or as in the released query-as-context code."""

    window: int = Field(3, ge=1, le=100_000)
    """Attention window of the autoregressive decoder in tokens, including the position itself; [CLS] is
    always visible."""

    directions: Literal["auto", "both", "forward"] = "auto"
    """Reconstruct each member of a pair from the other, or only the context from the passage. Auto: both,
    unless contexts are, or may be, queries. The contrastive loss needs both."""

    @model_validator(mode="after")
    def _encodes_what_it_contrasts(self) -> Self:
        if self.contrastive_weight > 0 and self.directions == "forward":
            raise QontextError(
                "the contrastive loss needs the vectors of both members of a pair, but directions is 'forward'",
                remedy="Remove --directions or set --contrastive-weight 0.",
            )
        return self


class CotMae(Contrasting, Objective):
    Options = CotMaeOptions
    options: CotMaeOptions
    default_context = "near+olap+rand"
    head: nn.Module

    def __init__(self, encoder: Encoder, options: CotMaeOptions, common: Common) -> None:
        super().__init__(encoder, options, common)
        self.contrastive = options.contrastive_weight > 0
        self.head_kind = f"{options.decoder} decoder"
        if options.decoder == "autoregressive":
            self.head = AutoregressiveDecoder(
                Settings.of(encoder), options.layers(1), options.window, common.seed
            )
        else:
            self.head = encoder.fresh_layers(options.layers(2), options.copied_layers(), seed=common.seed)

    @staticmethod
    def needs(options: CotMaeOptions) -> Needs:
        return "masked" if options.decoder == "autoregressive" else "layers"

    @staticmethod
    def layout(options: CotMaeOptions, common: Common) -> Layout:
        goes_back = options.directions == "both" or options.contrastive_weight > 0
        if options.directions == "auto":
            goes_back |= not common.has_queries
        return Layout(
            "both" if goes_back else "anchor",
            "other",
            options.encoder_mask,
            options.decoder_mask,
            "next" if options.decoder == "autoregressive" else "masked",
        )

    def forward(self, batch: MicroBatch) -> Output:
        passage, context = batch.encoder, batch.decoder
        assert context is not None
        last, vector = self.encode(passage)
        losses = self.mlm("encoder_mlm", last, passage) | self.decode("context_mlm", vector, context)
        return Output(losses, self.encoder.project(vector))
