"""MLM: the baseline, BERT's masked language model on the corpus.

    L = CE(φ(h^L), x)    on masked positions

Devlin et al. 2019, without next-sentence prediction.
"""

from __future__ import annotations

from pydantic import Field

from qontext.frame import config
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.base import Common, Objective, Output


class MlmOptions(config.Options):
    encoder_mask: float = Field(0.15, ge=0, le=1)
    """Share of masked tokens (at least one token)."""


class Mlm(Objective):
    Options = MlmOptions

    @staticmethod
    def layout(options: MlmOptions, common: Common) -> Layout:
        return Layout("anchor", "nothing", options.encoder_mask)

    def forward(self, batch: MicroBatch) -> Output:
        (last,) = self.encoder(batch.encoder.ids, batch.encoder.mask)
        return Output({"mlm": self.predict(last, batch.encoder)})
