"""What every objective offers to the training loop, and the two lines that most of them share.

The loop calls `forward(micro_batch)`, sums the named losses and back-propagates. An objective whose texts must
see each other (a contrastive one) gives `vectors` too, and offers `represent` (the vectors alone, for the
gradient cache's first pass) and `contrast` (their loss): that is all that the cache and the gather over
ranks need to know.

Shapes: N rows, T tokens, H hidden size, K predicted positions, M rows of the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qontext.engine.encoder import Encoder
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.texts import Text

if TYPE_CHECKING:
    from qontext.pretrain.config import PretrainConfig


@dataclass(frozen=True)
class Keys:
    """What rows of the whole batch are known by: their pair, their text, their document; [M] each."""

    pair: Tensor
    text: Tensor
    document: Tensor

    def __getitem__(self, rows: slice) -> Keys:
        return Keys(self.pair[rows], self.text[rows], self.document[rows])


@dataclass(frozen=True)
class Output:
    """Named losses of a micro-batch, each its share of the batch's; and the rows' vectors [N, H], if they are contrasted."""

    losses: dict[str, Tensor]
    vectors: Tensor | None = None


class Objective(nn.Module):
    """Base of the methods. What is trained besides the encoder is registered under `head`."""

    contrastive = False
    head_kind = ""
    head_reads = ""
    """What of the encoder the head is fed with, where that can be chosen."""

    def __init__(self, encoder: Encoder, config: PretrainConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.config = config

    @staticmethod
    def layout(config: PretrainConfig) -> Layout:
        """Which rows the method reads."""
        raise NotImplementedError

    def forward(self, batch: MicroBatch) -> Output:
        raise NotImplementedError

    def vector(self, last_NTH: Tensor, mask_NT: Tensor) -> Tensor:
        """h_x [N, H]: the last layer's [CLS] as it is, or with `vector = "mean"` the mean over the text's tokens."""
        if self.config.vector == "cls":
            return last_NTH[:, 0]
        weights = mask_NT[:, :, None].to(last_NTH.dtype)
        return (last_NTH * weights).sum(1) / weights.sum(1)

    def represent(self, batch: MicroBatch) -> Tensor:
        """The rows' vectors [N, H]."""
        return self.vectors(batch.encoder.ids, batch.encoder.mask)

    def vectors(self, ids_NT: Tensor, mask_NT: Tensor) -> Tensor:
        """Texts' vectors [N, H]."""
        (last,) = self.encoder(ids_NT, mask_NT)
        return self.vector(last, mask_NT)

    def compared(self, ids_NT: Tensor, mask_NT: Tensor) -> Tensor:
        """Texts' vectors [N, H] whose dot product is the similarity that the encoder is saved with."""
        vectors = self.vectors(ids_NT, mask_NT)
        return F.normalize(vectors, dim=-1) if self.config.similarity == "cosine" else vectors

    def contrast(self, vectors: Tensor, keys: Keys, rows: slice) -> dict[str, Tensor]:
        """The contrastive losses of some rows against all: [M, H] and their keys → named shares of the batch's loss."""
        raise NotImplementedError

    def head_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """What is trained besides the encoder, by name."""
        return [(n.removeprefix("head."), p) for n, p in self.named_parameters() if n.startswith("head.")]

    def predict(self, hidden_NTH: Tensor, text: Text) -> Tensor:
        """Σ weight · CE(φ(h), label) over the predicted positions; φ is computed nowhere else."""
        gathered_KH = hidden_NTH.flatten(0, 1)[text.positions]
        logits_KV = self.encoder.mlm_logits(gathered_KH)
        losses_K = F.cross_entropy(logits_KV.float(), text.labels, reduction="none")
        return (losses_K * text.weights).sum()


def with_first(first_NH: Tensor, rest_NTH: Tensor) -> Tensor:
    """[first ; rest₁ … restₙ]: the sequence with another vector in its first place."""
    return torch.cat([first_NH[:, None], rest_NTH[:, 1:]], dim=1)
