"""MLM: the baseline, BERT's masked language model on the corpus.

    L = CE(φ(h^L), x)    on masked positions

Devlin et al. 2019, without next-sentence prediction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.base import Objective, Output

if TYPE_CHECKING:
    from qontext.pretrain.config import PretrainConfig


class Mlm(Objective):
    @staticmethod
    def layout(config: PretrainConfig) -> Layout:
        return Layout("anchor", "nothing", config.encoder_rate(0.15), average=config.average("tokens"))

    def forward(self, batch: MicroBatch) -> Output:
        (last,) = self.encoder(batch.encoder.ids, batch.encoder.mask)
        return Output({"mlm": self.predict(last, batch.encoder)})
