"""Texts of different lengths in rectangular batches. Training minimizes padding; inference processes the longest first,
and texts of one length together.

On a CPU, inference computes several batches at a time, each on one thread. A batch that all threads share makes them wait
for each other after every operation. A batch for each thread does not, and its result does not depend on the number of
threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Ints = NDArray[np.int64]
T = TypeVar("T", int, Ints)
B = TypeVar("B")
R = TypeVar("R")
MOST_OVER = 4
_TOO_LARGE = 1 << 40
MOST_THREADS = 16
"""Maximum batches at a time: Python itself runs in one thread at a time."""
ATTENTION, NUMBER = 4 << 30, 6
"""Bytes of the attention matrices of all threads together, and of each of their numbers: three copies in bf16."""
_SETTING = threading.Lock()


class Grid(NamedTuple):
    """The shapes that rectangles may have: widths are multiples of `width`, and numbers of rows multiples of `rows`,
    except in one rectangle of a batch."""

    width: int
    rows: int

    def padded(self, tokens: T) -> T:
        """The padded width for texts with this number of tokens."""
        return -(-tokens // self.width) * self.width


FINE = Grid(8, 1)
COARSE = Grid(32, 8)
"""For training in bf16 on a CPU: the library compiles a kernel for each new shape of a matrix product, which takes several
times as long as the product itself."""
MEDIUM = Grid(16, 8)
"""For inference in bf16 on a CPU: shapes recur more often, and pay for less padding."""


def grid_for(device: torch.device, dtype: torch.dtype, *, inference: bool = False) -> Grid:
    """The grid for computing in this format on this device."""
    import torch

    if device.type != "cpu" or dtype != torch.bfloat16:
        return FINE
    return MEDIUM if inference else COARSE


def pack_by_tokens(tokens: Ints, also: Ints | None, budget: int, grid: Grid = FINE) -> list[Ints]:
    """Rows sorted by length and split into rectangles of at most `budget` tokens (but at least the grid's rows), with
    minimal total size; an additional rectangle must save `budget / 32` tokens of padding.

    `tokens` [N] are the rows' lengths, including special tokens; `also` those of a decoder's texts, which
    form separate rectangles. The best split of the first i rows ends in a rectangle that begins at some j,
    after the best split of the first j.
    """
    order = np.lexsort((also, tokens)) if also is not None else np.argsort(tokens, kind="stable")
    wide = grid.padded(tokens[order])
    beside = grid.padded(also[order]) if also is not None else np.zeros_like(wide)
    best = np.zeros(len(order) + 1)
    begin = np.zeros(len(order) + 1, np.int64)
    for end in sorted({*range(grid.rows, len(order), grid.rows), len(order)}):
        least = (end - 1) // grid.rows * grid.rows
        begins = np.arange(least, max(0, end - max(1, budget // int(wide[end - 1]))) - 1, -grid.rows)[::-1]
        begins = begins if len(begins) else np.array([least])
        widest = (
            wide[end - 1] + np.maximum.accumulate(beside[begins[0] : end][::-1])[::-1][begins - begins[0]]
        )
        area = (end - begins) * widest
        area[:-1] = np.where(area[:-1] > budget, _TOO_LARGE, area[:-1])
        total = best[begins] + area + budget / 32
        begin[end] = begins[total.argmin()]
        best[end] = total.min()
    cuts, end = [], len(order)
    while end:
        cuts.append(order[begin[end] : end])
        end = int(begin[end])
    return cuts[::-1]


def pad(rows: Sequence[Any], fill: int, width: int | None = None) -> tuple[Ints, NDArray[np.bool_]]:
    """Token ids of several texts as a rectangle [N, T], and its attention mask; T is the length of the longest text."""
    lengths = np.array([len(ids) for ids in rows])
    mask = np.arange(width or int(lengths.max())) < lengths[:, None]
    padded = np.full(mask.shape, fill, np.int64)
    padded[mask] = np.concatenate([np.asarray(ids) for ids in rows])
    return padded, mask


def batches_by_length(lengths: Ints, tokens: int, grid: Grid = FINE) -> Iterator[Ints]:
    """Row numbers of batches of at most `tokens` tokens, padding included, longest texts first.

    With a fine grid, a batch holds texts of one length as long as these fill at least half of it. With a coarse one, all
    batches of a width have the same number of rows, but for the last, and may therefore be larger: up to `MOST_OVER` times.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        stop = start + max(1, tokens // longest)
        width = int(grid.padded(longest))
        if 1 < grid.rows <= MOST_OVER * tokens // width:
            stop = start + max(1, tokens // width // grid.rows) * grid.rows
        elif grid.rows == 1:
            same = int(np.searchsorted(-lengths[order], -longest, side="right"))
            if same < stop and (same - start) * longest * 2 >= tokens:
                stop = same
        yield order[start : min(stop, len(order))]
        start = stop


def run_batches(
    compute: Callable[[Ints], R],
    store: Callable[[Ints, R], None],
    lengths: Ints,
    *,
    tokens: int,
    device: torch.device,
    grid: Grid = FINE,
    config: Any = None,
    most: int = MOST_THREADS,
    advance: Callable[[int], None] | None = None,
) -> None:
    """``store(rows, compute(rows))`` for batches of at most `tokens` tokens of the texts of these lengths, in inference
    mode. `config` is that of the transformers model; `advance` is called with the number of texts that are done.
    """
    batches = list(batches_by_length(lengths, tokens, grid))
    most = min(most, threads_for(lengths, batches, config))
    waiting: deque[tuple[Ints, R]] = deque()
    with closing(thread_batches(compute, batches, device, most)) as outputs:
        for batch in zip(batches, outputs):
            waiting.append(batch)
            if len(waiting) > 1:  # the device computes one batch while the other is copied
                store(*waiting.popleft())
            if advance:
                advance(len(batch[0]))
    for batch in waiting:
        store(*batch)


def thread_batches(
    compute: Callable[[B], R], batches: Sequence[B], device: torch.device, most: int = MOST_THREADS
) -> Generator[R]:
    """``compute(batch)`` of every batch, in inference mode and in their order, in at most `most` threads.

    Close it if it is not read to its end, or batches go on in the background.
    """
    import torch

    def infer(batch: B) -> R:
        with torch.inference_mode():
            return compute(batch)

    threads = torch.get_num_threads()
    workers = min(threads, len(batches), most, MOST_THREADS) if device.type == "cpu" else 1
    if workers <= 1:
        yield from map(infer, batches)
        return
    shares = iter([threads // workers + (worker < threads % workers) for worker in range(workers)])
    with ThreadPoolExecutor(workers, "batch", initializer=lambda: _use(next(shares))) as pool:
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
    import torch

    with _SETTING:
        torch.set_num_threads(threads)
        torch.get_num_threads()


def threads_for(lengths: Ints, batches: Sequence[Ints], config: Any) -> int:
    """The maximum number of batches of texts of these lengths at a time: their attention matrices are in memory."""
    largest = max((len(rows) * int(lengths[rows].max()) ** 2 for rows in batches), default=1)
    heads = getattr(config, "num_attention_heads", 12)
    return max(1, ATTENTION // (largest * heads * NUMBER))
