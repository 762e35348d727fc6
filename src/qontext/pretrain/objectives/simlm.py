"""SimLM: a generator replaces tokens of the text; the encoder and a decoder fed by its [CLS] restore all of them.

    a, b  = x with 30 % and 50 % of its tokens masked, the first among the second, and each of them replaced by a draw from
            the generator's distribution at that place
    L_enc = CE(φ(h^L(a)), x) at every token
    dec   = Layers([ h^L(a)[CLS] ; E(b)[1..n] ])
    L_dec = CE(φ(dec), x) at every token;    L = L_enc + L_dec

Wang et al. 2023, as its released code runs it: the generator is frozen (as published, ELECTRA's small generator; any encoder
with the same vocabulary and a trained MLM head will do), and the decoder starts from the encoder's last two layers.

Departure from the released code: the second mask continues the first one to 50 %; there, an independent one is added to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from qontext.frame.config import Input
from qontext.frame.errors import QontextError
from qontext.models.encoder import Encoder, load_encoder
from qontext.models.prediction import SCORES_PER_BLOCK
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.base import Common, HeadLayers, Needs, Objective, Output
from qontext.pretrain.texts import Text
from qontext.training.dropout import draw_uniform


class SimLmOptions(HeadLayers):
    generator: Annotated[str, Input()]
    """The generator: a model folder or a Hub name with a masked-language-model head and the encoder's vocabulary, such
    as google/electra-base-generator."""

    encoder_mask: float = Field(0.30, gt=0, le=1)
    """Share of replaced tokens in the encoder (at least one token)."""

    decoder_mask: float = Field(0.50, gt=0, le=1)
    """Share of replaced tokens in the decoder."""

    decoder_init: str = "last"
    """Initialization of the decoder's layers: last (copies of the encoder's last layers), random, or copies of encoder
    layers, such as 0,1."""

    def copied_layers(self) -> tuple[int, ...] | None:
        return None if self.decoder_init == "last" else super().copied_layers()


class SimLm(Objective):
    Options = SimLmOptions
    options: SimLmOptions
    head_kind = "mlm decoder"

    def __init__(self, encoder: Encoder, options: SimLmOptions, common: Common) -> None:
        super().__init__(encoder, options, common)
        count, copied = options.layers(2), options.copied_layers()
        if options.decoder_init == "last":
            copied = tuple(range(encoder.num_layers - count, encoder.num_layers))
        self.head = encoder.fresh_layers(count, copied, seed=common.seed)
        # In a tuple, it is no part of what is trained and saved.
        self.frozen = (load_generator(options.generator, encoder),)

    def _apply(self, change: Callable[[Tensor], Tensor], *rest: Any) -> Any:
        """The generator moves with the encoder."""
        self.frozen[0]._apply(change)  # type: ignore[no-untyped-call]
        return super()._apply(change, *rest)  # type: ignore[no-untyped-call]

    @staticmethod
    def needs(options: SimLmOptions) -> Needs:
        return "layers"

    @staticmethod
    def layout(options: SimLmOptions, common: Common) -> Layout:
        return Layout("anchor", "self", options.encoder_mask, options.decoder_mask, "restored")

    def forward(self, batch: MicroBatch) -> Output:
        text, other = batch.encoder, batch.decoder
        assert other is not None
        last, vector = self.encode(text)
        losses = self.mlm("encoder_rlm", last, text) | self.decode("decoder_rlm", vector, other)
        return Output(losses, vector)

    @torch.no_grad()
    def read(self, text: Text) -> Tensor:
        """[N, T] the text's ids, its masked ones replaced by draws from the generator."""
        assert text.masked is not None
        (generator,), ids = self.frozen, text.ids.flatten()
        (last,) = generator(text.ids, text.mask)
        hidden_RH = last.flatten(0, 1)[text.masked]
        dice_R = draw_uniform(text.ids.shape, ids.device).flatten()[text.masked]
        rows = max(1, SCORES_PER_BLOCK // generator.vocab_size)
        tokens = [
            sample(generator.mlm_logits(hidden), dice)
            for hidden, dice in zip(hidden_RH.split(rows), dice_R.split(rows), strict=True)
        ]
        return ids.scatter(0, text.masked, torch.cat(tokens)).view_as(text.ids)


def sample(logits_RV: Tensor, dice_R: Tensor) -> Tensor:
    """[R] the token at which the cumulative softmax passes the dice, which are uniform between 0 and 1."""
    cumulative_RV = logits_RV.float().softmax(1).cumsum(1)
    passed = torch.searchsorted(cumulative_RV, (dice_R[:, None] * cumulative_RV[:, -1:]), right=True)
    return passed[:, 0].clamp(max=logits_RV.shape[1] - 1)


def load_generator(name: str, encoder: Encoder) -> Encoder:
    """The generator, frozen; refused if its vocabulary is not the encoder's."""
    generator = load_encoder(name)
    if generator.tokenizer.get_vocab() != encoder.tokenizer.get_vocab():
        raise QontextError(
            "the generator's vocabulary is not that of the encoder",
            place=name,
            remedy="Pass a generator with the encoder's tokenizer, such as a smaller model of the same family.",
        )
    return generator.eval().requires_grad_(False)
