"""The base class of objectives: the interface to the training loop, and shared helpers.

An objective is a `TrainableModel`: it returns named losses for a micro-batch, and, if it is contrastive,
their vectors, too.

Shapes: N rows, T tokens, H hidden size, K predicted positions, M rows of the whole batch.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qontext.frame import config
from qontext.models.encoder import Encoder
from qontext.models.pooling import POOLINGS
from qontext.pretrain.batches import Keys as Keys
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives.options import Common
from qontext.pretrain.texts import Text
from qontext.training.batch import Output as Output
from qontext.training.batch import TrainableModel


class Phase(NamedTuple):
    """A phase of a training: the method's name in metrics and checkpoints, its class, its optimizer steps."""

    name: str
    objective: type[Objective]
    steps: int


class Objective(TrainableModel):
    """Base class of the methods. Modules trained besides the encoder are registered under `head`."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("layout", "forward")
    """What a method must define."""
    Options: ClassVar[type[config.Options]] = config.Options
    """The options of the method, besides `Common`."""
    default_context: ClassVar[str] = "rand"
    """The default context, if neither a context nor queries are set."""
    context_remedy: ClassVar[str] = "Remove --context."
    """What to do if a context is set, but not read."""
    head_kind = ""
    head_reads = ""
    """The layer that feeds the head, if it can be chosen."""

    def __init__(self, encoder: Encoder, options: Any, common: Common) -> None:
        super().__init__()
        self.encoder = encoder
        self.options = options
        self.common = common

    @staticmethod
    def layout(options: Any, common: Common) -> Layout:
        """Which rows the method reads."""
        raise NotImplementedError

    @classmethod
    def phases(cls, name: str, options: Any, steps: int) -> list[Phase]:
        """The consecutive phases of the method; the encoder and the head pass through all of them."""
        return [Phase(name, cls, steps)]

    def missing_head(self) -> str | None:
        """A warning for an encoder without a trained head, if the method expects one."""
        return None

    def forward(self, rows: MicroBatch) -> Output:
        raise NotImplementedError

    def vector(self, last_NTH: Tensor, mask_NT: Tensor) -> Tensor:
        """h_x [N, H]: the last layer's [CLS] as it is, or with `vector = "mean"` the mean over the text's tokens."""
        return POOLINGS[self.common.vector](last_NTH, mask_NT)

    def represent(self, rows: MicroBatch) -> Tensor:
        return self.vectors(rows.encoder.ids, rows.encoder.mask)

    def vectors(self, ids_NT: Tensor, mask_NT: Tensor) -> Tensor:
        """Texts' vectors [N, H]."""
        (last,) = self.encoder(ids_NT, mask_NT)
        return self.vector(last, mask_NT)

    def compared(self, ids_NT: Tensor, mask_NT: Tensor) -> Tensor:
        """Texts' vectors [N, H] whose dot product is the similarity that the encoder is saved with."""
        vectors = self.vectors(ids_NT, mask_NT)
        return F.normalize(vectors, dim=-1) if self.common.similarity == "cosine" else vectors

    def head_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The modules trained besides the encoder, by name."""
        return [(n.removeprefix("head."), p) for n, p in self.named_parameters() if n.startswith("head.")]

    def predict(self, hidden_NTH: Tensor, text: Text) -> Tensor:
        """Σ weight · CE(φ(h), label) over the predicted positions; φ is only computed there."""
        gathered_KH = hidden_NTH.flatten(0, 1)[text.positions]
        return self.encoder.mlm_loss(gathered_KH, text.labels, text.weights)


def with_first(first_NH: Tensor, rest_NTH: Tensor) -> Tensor:
    """[first ; rest₁ … restₙ]: the sequence with its first vector replaced."""
    return torch.cat([first_NH[:, None], rest_NTH[:, 1:]], dim=1)
