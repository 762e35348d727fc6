"""Map a function over blocks in several processes: in order, with bounded memory, interruptible."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from qontext.frame.errors import QontextError

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(function: Callable[[T], R], blocks: Iterable[T], workers: int) -> Iterator[R]:
    """Apply `function` to each block, in order. `workers` 0 means one per core, 1 means no additional
    process, as does a single block. The number is limited to four per core, since more only take memory. Only
    a few blocks are in flight at a time.
    """
    workers = min(workers or cores(), 4 * cores())
    remaining = iter(blocks)
    first = list(itertools.islice(remaining, 1 if workers == 1 else 2))
    blocks = itertools.chain(first, remaining)
    if workers == 1 or len(first) < 2:
        yield from map(function, blocks)
        return
    start = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context(start), initializer=_live_with_parent
    )
    pending: deque[Future[R]] = deque()
    try:
        for block in blocks:
            pending.append(pool.submit(function, block))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise QontextError(
            "a worker process was killed, most likely by running out of memory",
            remedy="Run the same command again with fewer --workers: it resumes.",
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _live_with_parent() -> None:
    """In a worker: leave interrupts to the parent, and exit when the parent exits, even if it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # including blocked signals
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
