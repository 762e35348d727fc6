"""The batch of step t, as a pure function of (seed, t): queries, the passages they come with, micro-batches.

Queries and passages go into micro-batches apart, each sorted by length and cut by a budget of tokens, so that a
query is never padded to a passage's length. Every rank has as many rows as every other.

Shapes: N rows of a micro-batch, T tokens after padding, M rows of the whole batch, K known positives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qontext.engine.distributed import Group
from qontext.engine.randomness import permuted, torch_seed
from qontext.engine.rectangles import Ints, cut_by_budget
from qontext.errors import QontextError
from qontext.finetune.examples import Examples
from qontext.finetune.texts import Texts


@dataclass(frozen=True)
class Keys:
    """What the rows of a batch are known by, [M] each.

    `query` is the query's place in the whole batch, of a passage that of the query it came with; `known` [M, K]
    holds the text keys of a query's positives, -1 elsewhere; `teacher` a passage's score, NaN if it has none.
    """

    is_query: Tensor
    query: Tensor
    is_positive: Tensor
    text: Tensor
    teacher: Tensor
    known: Tensor

    def __getitem__(self, rows: Any) -> Keys:
        return Keys(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True)
class MicroBatch:
    """Some texts of one kind, padded; `mask` is True at real tokens. `seed` fixes the dropout."""

    ids: Tensor
    mask: Tensor
    seed: int
    are_queries: bool = False

    def to(self, device: torch.device) -> MicroBatch:
        ids, mask = (tensor.to(device, non_blocking=True) for tensor in (self.ids, self.mask))
        return replace(self, ids=ids, mask=mask)


@dataclass(frozen=True)
class Batch:
    """A rank's micro-batches of one step, and its rows' keys in their order. `passages` is the whole step's."""

    micro: list[MicroBatch]
    keys: Keys
    passages: int


@dataclass(frozen=True)
class Turns:
    """Which queries a step shows to this rank: each once an epoch, in another order each time."""

    queries: int
    batch_size: int
    seed: int
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % self.world:
            raise QontextError(
                f"the batch size {self.batch_size} cannot be divided among {self.world} processes"
            )
        if self.queries < self.batch_size:
            raise QontextError(
                f"a batch of {self.batch_size:,} is larger than the training set, which has {self.queries:,} queries",
                remedy=f"Set --batch-size to at most {self.queries:,}.",
            )

    def __call__(self, step: int) -> tuple[Ints, int, int]:
        """The queries' numbers, the epoch, and the first one's place in the whole batch."""
        epoch, within = divmod(step, self.queries // self.batch_size)
        first, last = (self.batch_size * r // self.world for r in (self.rank, self.rank + 1))
        places = np.arange(first, last) + within * self.batch_size
        return permuted(places, self.queries, self.seed, epoch), epoch, first


@dataclass(frozen=True)
class RetrieverPlan:
    """Everything a batch is a function of, besides the step."""

    examples: Examples
    queries: Texts
    passages: Texts
    turns: Turns
    per_query: int
    micro_tokens: int
    pad_id: int

    def __call__(self, step: int) -> Batch:
        numbers, epoch, first = self.turns(step)
        seed = self.turns.seed
        visits = [self.examples.visit(n, epoch, self.per_query, seed) for n in numbers.tolist()]
        passages = np.concatenate([shown for shown, _ in visits])
        teacher = np.concatenate([scores for _, scores in visits])
        place = first + np.arange(len(numbers))
        none = np.full((len(passages), self.examples.known.shape[1]), -1)
        keys = Keys(
            *(
                torch.from_numpy(column)
                for column in (
                    np.repeat([True, False], [len(numbers), len(passages)]),
                    np.concatenate([place, np.repeat(place, self.per_query)]),
                    np.concatenate(
                        [np.zeros(len(numbers), bool), np.arange(len(passages)) % self.per_query == 0]
                    ),
                    np.concatenate([np.full(len(numbers), -1), self.passages.key[passages]]),
                    np.concatenate([np.full(len(numbers), np.nan, np.float32), teacher]),
                    np.concatenate([self.examples.known[numbers], none]),
                )
            )
        )
        cuts = [(self.queries, numbers, rows) for rows in self._cut(self.queries, numbers)]
        cuts += [(self.passages, passages, rows) for rows in self._cut(self.passages, passages)]
        micro = [
            MicroBatch(
                *texts.pad(of[rows], self.pad_id),
                torch_seed(seed, "dropout", step, self.turns.rank, number),
                texts is self.queries,
            )
            for number, (texts, of, rows) in enumerate(cuts)
        ]
        shift = [0 if texts is self.queries else len(numbers) for texts, _, _ in cuts]
        order = np.concatenate([rows + by for (_, _, rows), by in zip(cuts, shift)])
        return Batch(micro, keys[torch.from_numpy(order)], len(passages) * self.turns.world)

    def _cut(self, texts: Texts, numbers: Ints) -> list[Ints]:
        return cut_by_budget(texts.length[numbers], None, self.micro_tokens)


def prepare(batch: Batch, group: Group) -> tuple[Sequence[MicroBatch], Keys]:
    """The micro-batches on the device, and all ranks' keys."""
    own = batch.keys
    keys = Keys(*(group.gather(getattr(own, f.name).to(group.device)) for f in fields(own)))
    return [one.to(group.device) for one in batch.micro], keys


def pin(batch: Batch) -> Batch:
    """Page-locked copies, so that the transfer to a GPU overlaps with computing."""
    micro = [replace(one, ids=one.ids.pin_memory(), mask=one.mask.pin_memory()) for one in batch.micro]
    return Batch(micro, batch.keys, batch.passages)
