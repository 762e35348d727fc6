"""Several batches at a time on a CPU, each on one thread.

A batch that all threads share makes them wait for each other after every operation. A batch for each thread does not,
and its result does not depend on the number of threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

B = TypeVar("B")
R = TypeVar("R")
MOST = 16
"""Lanes at most: Python itself runs in one of them at a time."""


def each(compute: Callable[[B], R], batches: Sequence[B], device: torch.device) -> Iterator[R]:
    """``compute(batch)`` of every batch, in inference mode and in their order."""

    def infer(batch: B) -> R:
        with torch.inference_mode():
            return compute(batch)

    threads = torch.get_num_threads()
    lanes = min(threads, len(batches), MOST) if device.type == "cpu" else 1
    if lanes <= 1:
        yield from map(infer, batches)
        return
    share = threads // lanes
    with ThreadPoolExecutor(lanes, "lane", initializer=lambda: torch.set_num_threads(share)) as pool:
        coming = deque(pool.submit(infer, batch) for batch in batches)
        try:
            while coming:
                yield coming.popleft().result()  # and let go of it
        finally:  # after an error, what has not begun is not computed
            pool.shutdown(wait=False, cancel_futures=True)
