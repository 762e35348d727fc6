"""Concurrent requests → batches for a single compute thread. Jobs with the same key are computed together:
while one batch is computed, arriving jobs wait and form the next. The queue is bounded; further jobs are
refused at once, so that clients can retry later.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from qontext.serve.errors import Overloaded, TimedOut

LARGEST = 64
"""Items of a batch. A job with more is computed in several batches, between which other jobs have their turn."""

Function = Callable[[list[Any]], Sequence[Any]]


@dataclass(eq=False)
class _Job:
    key: Hashable
    function: Function
    items: list[Any]
    future: Future[list[Any]] = field(default_factory=Future)
    results: list[Any] = field(default_factory=list)
    """Those of the first items."""
    is_abandoned: bool = False
    """True if nobody waits for the results anymore."""


_Part = tuple[_Job, list[Any]]
"""A job, and the items of it that are computed next."""


class Batcher:
    """Runs functions over lists of items; `close` ends its thread after the current batch."""

    def __init__(self, capacity: int, seconds: float, observe: Callable[[int], None] | None = None) -> None:
        self.capacity, self.seconds = capacity, seconds
        self._observe = observe or (lambda size: None)
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="qontext-compute", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._jobs)

    async def run(self, key: Hashable, function: Function, items: list[Any]) -> list[Any]:
        """``function(items)``, which returns a result per item, computed with other jobs of the same key."""
        job = self._enqueue(_Job(key, function, items))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(job.future), self.seconds)
        except TimeoutError:
            raise TimedOut(
                f"the answer was not ready within {self.seconds:g} seconds", remedy="Try again later."
            ) from None
        finally:
            job.is_abandoned = True

    def close(self) -> None:
        """Refuse new jobs, cancel waiting ones and let the thread end."""
        with self._changed:
            self._is_closed = True
            for job in self._jobs:
                if not job.future.cancel():  # some of its items are computed
                    job.future.set_exception(_overloaded())
            self._jobs.clear()
            self._changed.notify()
        self._thread.join(timeout=self.seconds)

    def _enqueue(self, job: _Job) -> _Job:
        with self._changed:
            if self._is_closed or len(self._jobs) >= self.capacity:
                raise _overloaded()
            self._jobs.append(job)
            self._changed.notify()
        return job

    def _work(self) -> None:
        while batch := self._next():
            items = [item for _, part in batch for item in part]
            self._observe(len(items))
            try:
                results = list(batch[0][0].function(items))
                assert len(results) == len(items)
            except Exception as error:
                self._each_alone(batch, error)
                continue
            for job, part in batch:
                self._add(job, results[: len(part)])
                del results[: len(part)]

    def _each_alone(self, batch: list[_Part], error: Exception) -> None:
        """After an error in a batch, only the jobs that cause it fail."""
        if len(batch) == 1:
            batch[0][0].future.set_exception(error)
            return
        for job, part in batch:
            try:
                self._add(job, list(job.function(part)))
            except Exception as own:
                job.future.set_exception(own)

    def _add(self, job: _Job, results: list[Any]) -> None:
        """Finish the job with these results, or put it at the end of the queue if it has more items."""
        job.results += results
        if len(job.results) == len(job.items):
            job.future.set_result(job.results)
            return
        with self._changed:
            if self._is_closed:
                job.future.set_exception(_overloaded())
            else:
                self._jobs.append(job)

    def _next(self) -> list[_Part]:
        """Items of the job that has waited longest and of those with its key; none once the batcher is closed."""
        with self._changed:
            while True:
                while not self._jobs and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return []
                key, size = self._jobs[0].key, 0
                batch: list[_Part] = []
                for job in list(self._jobs):
                    part = job.items[len(job.results) :][:LARGEST]
                    if job.key == key and size + len(part) <= LARGEST:
                        self._jobs.remove(job)
                        is_wanted = job.future.running() or job.future.set_running_or_notify_cancel()
                        if is_wanted and not job.is_abandoned:
                            batch.append((job, part))
                            size += len(part)
                if batch:
                    return batch


def _overloaded() -> Overloaded:
    return Overloaded("the server is busy", remedy="Try again in a second.")
