"""Which ids came before, in eight bytes an id."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


class SeenIds:
    """Finds repeated ids in a stream of batches.

    Ids are kept as 64-bit hashes in sorted runs that are merged as they grow, so a hundred million ids take
    800 MB where a set of strings would take ten times that. The chance that two different ids among
    n share a hash is n²/2⁶⁵: 3 in 10,000 for a hundred million.
    """

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def repeated(self, ids: list[str]) -> list[bool]:
        """For each id of the batch, whether it came before (in this batch or an earlier one)."""
        hashes = np.fromiter((_hash(i) for i in ids), np.uint64, len(ids))
        unique, first = np.unique(hashes, return_index=True)
        is_repeated = np.ones(len(ids), bool)
        is_repeated[first] = False
        for run in self._runs:
            position = np.searchsorted(run, hashes)
            is_repeated |= run[np.minimum(position, len(run) - 1)] == hashes
        self._add(unique)
        return [bool(x) for x in is_repeated]

    def _add(self, run: NDArray[np.uint64]) -> None:
        # Runs at least double in size from newest to oldest, so there are only log n of them.
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.union1d(self._runs.pop(), run)
        if len(run):
            self._runs.append(run)


def _hash(value: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
    )
