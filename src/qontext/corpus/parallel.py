"""Map a function over blocks in several processes: in order, with bounded memory, stopping when asked."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from qontext.errors import QontextError

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(function: Callable[[T], R], blocks: Iterable[T], workers: int) -> Iterator[R]:
    """`function` of each block, in the blocks' order; `workers` 0 means one per core, 1 none but this process.
    More than four per core only take memory, so there are never more.

    Only a few blocks are under way at a time, however many there are.
    """
    workers = min(workers or cores(), 4 * cores())
    if workers == 1:
        yield from map(function, blocks)
        return
    start = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context(start), initializer=_live_with_parent
    )
    pending: deque[Future[R]] = deque()
    try:
        for block in blocks:
            with _interrupts_held():
                pending.append(pool.submit(function, block))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise QontextError(
            "a worker process was killed, most likely because memory ran out",
            remedy="Run the same command again with fewer --workers: it resumes.",
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep an interrupt back while a worker is born: until it has made up its mind, it would die of one, aloud."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _live_with_parent() -> None:
    """In a worker: leave an interrupt to the parent, and end when the parent is gone, even if it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # and whatever was held back goes with it
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
