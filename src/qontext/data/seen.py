"""Detect repeated ids, using eight bytes per id, in memory or in partitions on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qontext.frame.hashes import hash64


class SeenIds:
    """Finds repeated ids in a stream of batches.

    Ids are kept as 64-bit hashes in sorted runs that are merged as they grow, so a hundred million ids take
    800 MB where a set of strings would take ten times that. The chance that two different ids among
    n share a hash is n²/2⁶⁵: 3 in 10,000 for a hundred million.
    """

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def repeated(self, ids: list[str]) -> list[bool]:
        """For each id of the batch, whether it occurred before (in this batch or an earlier one)."""
        hashes = _hashes(ids)
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


PARTITIONS = 256
"""Files into which `first_repeated` divides hashes: it holds one of them at a time."""
_BUFFER = 1 << 20


def first_repeated(batches: Callable[[], Iterator[list[str]]]) -> tuple[int, str | None]:
    """How many ids there are, and the first that occurs a second time, if one does.

    Hashes go to files by their first byte, so memory does not grow with the ids but for a 256th of their hashes.
    `batches` is called again where hashes are equal, to compare the ids themselves.
    """
    count, repeated = 0, []
    with tempfile.TemporaryDirectory(prefix="qontext-ids-") as folder:
        buffer: list[NDArray[np.uint64]] = []
        for ids in batches():
            buffer.append(_hashes(ids))
            count += len(ids)
            if sum(map(len, buffer)) > _BUFFER:
                _spill(Path(folder), np.concatenate(buffer))
                buffer.clear()
        repeated = [_repeated(np.concatenate(buffer))] if buffer else []
        if spilled := sorted(Path(folder).iterdir()):
            _spill(Path(folder), np.concatenate([np.zeros(0, np.uint64), *buffer]))
            repeated = [_repeated(np.fromfile(file, np.uint64)) for file in spilled]
    suspects = np.concatenate([np.zeros(0, np.uint64), *repeated])
    return count, _first_of(batches(), suspects) if len(suspects) else None


def _spill(folder: Path, hashes: NDArray[np.uint64]) -> None:
    hashes = np.sort(hashes)
    bounds = np.arange(1, PARTITIONS, dtype=np.uint64) << np.uint64(56)
    for number, part in enumerate(np.split(hashes, np.searchsorted(hashes, bounds))):
        with (folder / f"{number:03d}").open("ab") as file:
            file.write(part.data)


def _repeated(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    hashes = np.sort(hashes)
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])


def _first_of(batches: Iterator[list[str]], suspects: NDArray[np.uint64]) -> str | None:
    """The first id to occur a second time, among those with these hashes."""
    earlier: set[str] = set()
    for ids in batches:
        for place in np.flatnonzero(np.isin(_hashes(ids), suspects)):
            if ids[place] in earlier:
                return ids[place]
            earlier.add(ids[place])
    return None


def _hashes(ids: list[str]) -> NDArray[np.uint64]:
    return np.fromiter(map(hash64, ids), np.uint64, len(ids))
