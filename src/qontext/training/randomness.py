"""Random numbers as pure functions of counters.

    number = mix(seed, stream, counter₁, counter₂, …)

There is no state: the number for (passage 7, visit 3, token 12) is the same in any process, batch or order,
and after any restart. `mix` is splitmix64's finalizer, applied once per counter, vectorized. What has a name instead of a
number has its `key_of` as a counter; a `generator` of a name is for draws without replacement.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qontext.frame.errors import QontextError
from qontext.frame.files import digest_of
from qontext.models.batching import Ints

U64 = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hashed(seed: int, stream: str, *counters: Any) -> U64:
    """64 random bits for each combination of counters (arrays broadcast). `stream` names their purpose."""
    state = np.asarray((seed & 0xFFFFFFFFFFFFFFFF) ^ (key_of(stream) << 32), dtype=np.uint64)
    with np.errstate(over="ignore"):
        state = _mix(state + _GOLDEN)
        for counter in counters:
            state = _mix((state ^ np.asarray(counter).astype(np.uint64)) * _GOLDEN + _GOLDEN)
    return state


def uniform(seed: int, stream: str, *counters: Any) -> NDArray[np.float64]:
    """Numbers in [0, 1)."""
    return (hashed(seed, stream, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(limit: Any, seed: int, stream: str, *counters: Any) -> NDArray[np.int64]:
    """Integers in [0, limit), for limits far below 2⁵³."""
    numbers: NDArray[np.int64] = (uniform(seed, stream, *counters) * limit).astype(np.int64)
    return numbers


def permuted(index: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A random permutation of 0 … size - 1 that is computed, not stored: a four-round Feistel network on the
    next even number of bits, with cycle walking (at most four steps on average).
    """
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    value = index.astype(np.uint64)
    outside = np.ones(len(value), bool)
    while outside.any():
        left, right = value[outside] >> np.uint64(half), value[outside] & mask
        for round_number in range(4):
            left, right = right, left ^ (hashed(seed, "shuffle", epoch, round_number, right) & mask)
        value[outside] = left << np.uint64(half) | right
        outside = value >= size
    return value.astype(np.int64)


def torch_seed(seed: int, stream: str, *counters: int) -> int:
    """A seed for torch's generators, from counters."""
    return int(hashed(seed, stream, *counters)) & 0x7FFFFFFFFFFFFFFF


def key_of(name: str) -> int:
    """The counter of a name, such as a passage's id."""
    return zlib.crc32(name.encode())


def sample_names(names: Iterable[str], count: int, seed: int) -> list[str]:
    """At most `count` of the names, independent of their order."""
    ordered = sorted(names)
    if count >= len(ordered):
        return ordered
    numbers = generator(seed, "queries", "").choice(len(ordered), count, replace=False)
    return [ordered[i] for i in sorted(numbers)]


def generator(seed: int, purpose: str, name: str) -> np.random.Generator:
    """A generator that only depends on the seed, the purpose and the name."""
    bits = int.from_bytes(digest_of(f"{seed}\0{purpose}\0{name}"))
    return np.random.Generator(np.random.PCG64(bits))


def _mix(state: Any) -> U64:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)), dtype=np.uint64)


@dataclass(frozen=True)
class EpochSampler:
    """The examples of a step, as a function of (seed, step): each once per epoch, in a different order each time. Those of
    this rank; `unit` is their name in messages."""

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
