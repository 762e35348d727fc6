"""The batch contract of every training: micro-batches of rows, keys of rows, and named losses.

A *row* is one text, or one list of them. A batch is cut into micro-batches, each padded to a rectangle; a loss is a sum
of shares, one per row, so the result does not depend on how the batch is split into micro-batches and ranks.

Shapes: N rows of a micro-batch, M rows of the whole batch, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from qontext.frame.errors import QontextError
from qontext.training.distributed import RankGroup
from qontext.training.randomness import U64

Losses = dict[str, Tensor]


@dataclass(frozen=True)
class Tensors:
    """A record of tensors that move together."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A copy of the record with a function applied to each tensor."""
        return replace(self, **{f.name: _map(getattr(self, f.name), change) for f in fields(self)})

    def to(self, device: torch.device) -> Self:
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Self:
        """Page-locked copies, whose transfer to a GPU overlaps with computing."""
        return self.map(lambda tensor: tensor.pin_memory())

    def __getitem__(self, rows: Any) -> Self:
        return self.map(lambda tensor: tensor[rows])


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _map(entry, change) for name, entry in value.items()}
    return value.map(change) if is_dataclass(value) and isinstance(value, Tensors) else value


@dataclass(frozen=True)
class Rows(Tensors):
    """A micro-batch. `row_keys` [N] are random bits by which a row's dropout is drawn."""

    row_keys: U64 = field(kw_only=True)

    def scaled(self, shares: Tensor) -> Self:
        """A copy with the weights of each kind of prediction multiplied by its share; see `Batch.predictions`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Batch:
    """A rank's part of one step.

    `keys` has an entry for each row of the micro-batches, in order, by which a contrastive loss distinguishes
    rows. A loss that is a mean over predictions weights those of a rank by 1 / their number; `predictions` is
    that number for each kind of prediction, so that ranks can be combined.
    """

    micro: Sequence[Rows]
    passages: int
    """Passages in the whole step, across all ranks."""
    keys: Tensors | None = None
    predictions: tuple[float, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows of this rank."""
        return sum(len(rows.row_keys) for rows in self.micro)

    def pin(self) -> Batch:
        return replace(self, micro=[rows.pin() for rows in self.micro], keys=self.keys and self.keys.pin())


@dataclass(frozen=True)
class Output:
    """Named losses of a micro-batch (shares of the batch's losses), and the rows' vectors [N, H] for
    contrastive losses."""

    losses: Losses = field(default_factory=dict)
    vectors: Tensor | None = None


class TrainableModel(nn.Module):
    """A model that the loop can train. A model with a contrastive loss sets `contrastive`: `forward` then
    returns vectors, too; `represent` returns the vectors alone, for the gradient cache's first pass; and
    `contrast` is the loss between them.
    """

    contrastive = False
    progress = 0.0
    """Share of the steps that are done, for losses whose weight changes during the training."""
    batch_rows = 0
    """The number of rows of the whole batch, on all ranks, for losses that are a mean over rows."""

    def forward(self, rows: Any) -> Output:
        raise NotImplementedError

    def represent(self, rows: Any) -> Tensor:
        """The rows' vectors [N, H]."""
        raise NotImplementedError

    def contrast(self, vectors_MH: Tensor, keys: Any, rows: slice) -> Losses:
        """The contrastive losses of rows against all rows: named shares of the batch's loss."""
        raise NotImplementedError


def check(output: Any, model: TrainableModel) -> Output:
    """The result of `forward`; refused if the loop cannot train with it."""
    name = f"forward of {type(model).__name__} returned"
    if not isinstance(output, Output):
        raise QontextError(f"{name} a {type(output).__name__}", remedy="Return an Output with named losses.")
    check_losses(output.losses, name)
    if model.contrastive and not isinstance(output.vectors, Tensor):
        raise QontextError(
            f"{name} no vectors, which a contrastive method needs", remedy="Set Output.vectors."
        )
    return output


def check_losses(losses: Any, name: str) -> Losses:
    """Named losses; refused if one is not a number. The message starts with `name`."""
    if not isinstance(losses, dict):
        raise QontextError(f"{name} a {type(losses).__name__}", remedy="Return a dict of named losses.")
    for loss, value in losses.items():
        if not isinstance(value, Tensor) or value.ndim:
            kind = f"shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise QontextError(
                f"{name} the loss {loss!r} as {kind}", remedy="A loss is a tensor with one number."
            )
    return losses


def prepare(batch: Batch, group: RankGroup) -> tuple[list[Rows], Any]:
    """Move the micro-batches to the device, weighted as this rank's share, and gather the keys of all ranks' rows."""
    micro = [rows.to(group.device) for rows in batch.micro]
    if batch.predictions and group.world > 1:
        own = torch.tensor(batch.predictions).to(group.device, non_blocking=True)
        shares = own / group.sum(own.clone())
        micro = [rows.scaled(shares) for rows in micro]
    return micro, batch.keys and batch.keys.to(group.device).map(group.gather)
