"""The examples of a step, as a function of (seed, step): each once per epoch, in a different order each time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qontext.frame.errors import QontextError
from qontext.models.batching import Ints
from qontext.training.randomness import permuted


@dataclass(frozen=True)
class EpochSampler:
    """The examples of each step for this rank; `unit` is their name in messages."""

    examples: int
    batch_size: int
    seed: int
    rank: int = 0
    world: int = 1
    unit: str = "queries"

    def __post_init__(self) -> None:
        if self.batch_size % self.world:
            raise QontextError(
                f"the batch size {self.batch_size} cannot be divided among {self.world} processes"
            )
        if self.examples < self.batch_size:
            raise QontextError(
                f"a batch of {self.batch_size:,} is larger than the training set, which has {self.examples:,} {self.unit}",
                remedy=f"Set --batch-size to at most {self.examples:,}.",
            )

    def __call__(self, step: int) -> tuple[Ints, int, int]:
        """The examples' numbers, the epoch, and the position of the first one in the whole batch."""
        epoch, within = divmod(step, self.examples // self.batch_size)
        first, last = (self.batch_size * r // self.world for r in (self.rank, self.rank + 1))
        places = np.arange(first, last) + within * self.batch_size
        return self.order(places, epoch), epoch, first

    def order(self, places: Ints, epoch: int) -> Ints:
        """The examples at these places of an epoch."""
        return permuted(places, self.examples, self.seed, epoch)
