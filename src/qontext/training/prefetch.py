"""Prepare batches in a thread while previous ones are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

B = TypeVar("B")


class Prefetched(Generic[B]):
    """(step, batch) pairs, each prepared in a thread while the previous one is computed."""

    def __init__(self, batch_of: Callable[[int], B], first: int, last: int) -> None:
        self.batch_of, self.first, self.last = batch_of, first, last

    def __enter__(self) -> Iterator[tuple[int, B]]:
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        return self._batches()

    def _batches(self) -> Iterator[tuple[int, B]]:
        coming = [
            self.pool.submit(self.batch_of, step)
            for step in range(self.first, min(self.first + 2, self.last))
        ]
        for step in range(self.first, self.last):
            batch = coming.pop(0).result()
            if step + 2 < self.last:
                coming.append(self.pool.submit(self.batch_of, step + 2))
            yield step, batch

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)
