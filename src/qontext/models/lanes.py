"""Several batches at a time on a CPU, each on one thread.

A batch that all threads share makes them wait for each other after every operation. A batch for each thread does not,
and its result does not depend on the number of threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from qontext.models.packing import Ints

B = TypeVar("B")
R = TypeVar("R")
MOST = 16
"""Lanes at most: Python itself runs in one of them at a time."""
_SETTING = threading.Lock()
ATTENTION, NUMBER = 4 << 30, 6
"""Bytes of attention matrices in all lanes together, and of each of their numbers: three copies in bf16."""


def each(
    compute: Callable[[B], R], batches: Sequence[B], device: torch.device, most: int = MOST
) -> Generator[R]:
    """``compute(batch)`` of every batch, in inference mode and in their order, in at most `most` lanes.

    Close it if it is not read to its end, or batches go on in the background.
    """

    def infer(batch: B) -> R:
        with torch.inference_mode():
            return compute(batch)

    threads = torch.get_num_threads()
    lanes = min(threads, len(batches), most, MOST) if device.type == "cpu" else 1
    if lanes <= 1:
        yield from map(infer, batches)
        return
    shares = iter([threads // lanes + (lane < threads % lanes) for lane in range(lanes)])
    with ThreadPoolExecutor(lanes, "lane", initializer=lambda: _use(next(shares))) as pool:
        coming = deque(pool.submit(infer, batch) for batch in batches)
        try:
            while coming:
                result = coming.popleft().result()  # and let go of it
                _use(threads)
                yield result
                del result
        finally:  # after an error, what has not begun is not computed
            pool.shutdown(wait=False, cancel_futures=True)
            _use(threads)


def _use(threads: int) -> None:
    """Give this thread a number of threads to compute with. A thread takes what was set last, in whatever thread, when it
    first asks: this one asks at once, and the main thread restores the number for those that begin later."""
    with _SETTING:
        torch.set_num_threads(threads)
        torch.get_num_threads()


def lanes_for(lengths: Ints, batches: Sequence[Ints], config: Any) -> int:
    """How many batches of texts of these lengths may be computed at a time: their attention matrices are in memory."""
    largest = max((len(rows) * int(lengths[rows].max()) ** 2 for rows in batches), default=1)
    heads = getattr(config, "num_attention_heads", 12)
    return max(1, ATTENTION // (largest * heads * NUMBER))
