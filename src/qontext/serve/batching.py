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

from qontext.frame.errors import QontextError

LARGEST = 64
"""Items of a batch, unless one job has more."""

Function = Callable[[list[Any]], Sequence[Any]]


class Overloaded(QontextError):
    """The queue is full."""


class TimedOut(QontextError):
    """The answer was not ready in time."""


@dataclass(eq=False)
class _Job:
    key: Hashable
    function: Function
    items: list[Any]
    future: Future[list[Any]] = field(default_factory=Future)


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

    def run_blocking(self, key: Hashable, function: Function, items: list[Any]) -> list[Any]:
        """The same for callers that are threads."""
        return self._enqueue(_Job(key, function, items)).future.result(self.seconds)

    def close(self) -> None:
        """Refuse new jobs, cancel waiting ones and let the thread end."""
        with self._changed:
            self._is_closed = True
            for job in self._jobs:
                job.future.cancel()
            self._jobs.clear()
            self._changed.notify()
        self._thread.join(timeout=self.seconds)

    def _enqueue(self, job: _Job) -> _Job:
        with self._changed:
            if self._is_closed or len(self._jobs) >= self.capacity:
                raise Overloaded("the server is busy", remedy="Try again in a second.")
            self._jobs.append(job)
            self._changed.notify()
        return job

    def _work(self) -> None:
        while batch := self._next():
            items = [item for job in batch for item in job.items]
            self._observe(len(items))
            try:
                results = list(batch[0].function(items))
                assert len(results) == len(items)
            except Exception as error:
                self._each_alone(batch, error)
                continue
            for job in batch:
                job.future.set_result(results[: len(job.items)])
                del results[: len(job.items)]

    def _each_alone(self, batch: list[_Job], error: Exception) -> None:
        """After an error in a batch, only the jobs that cause it fail."""
        if len(batch) == 1:
            batch[0].future.set_exception(error)
            return
        for job in batch:
            try:
                job.future.set_result(list(job.function(job.items)))
            except Exception as own:
                job.future.set_exception(own)

    def _next(self) -> list[_Job]:
        """The job that has waited longest and those with its key; none once the batcher is closed."""
        with self._changed:
            while True:
                while not self._jobs and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return []
                key, size = self._jobs[0].key, 0
                batch: list[_Job] = []
                for job in list(self._jobs):
                    if job.key == key and (not batch or size + len(job.items) <= LARGEST):
                        self._jobs.remove(job)
                        if job.future.set_running_or_notify_cancel():
                            batch.append(job)
                            size += len(job.items)
                if batch:
                    return batch
