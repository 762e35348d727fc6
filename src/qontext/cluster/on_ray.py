"""Parts on a Ray cluster: a worker per GPU or core, each of which is given one part after the other.

The command that was started holds the queue. A part is *leased* to a worker; it returns to the queue when the worker
dies, when it has not been heard of for `SILENCE` seconds, or when the part takes `PATIENCE` times as long as the slowest
one so far. Whatever a worker that was given up still writes is harmless: a part appears by rename, with the same bytes.
A part that raises an error `ATTEMPTS` times stops the job; finished parts stay.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from qontext.cluster.connect import ClusterHead, connected
from qontext.cluster.launcher import Processes, watch
from qontext.cluster.worker import Failure, Order, Worker
from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.frame.parts import Outcome, Part, Parts

BEAT, SILENCE = 5.0, 60.0
"""Seconds between two signs of life, and without one until a worker is given up."""
PATIENCE, LEAST_LEASE = 10, 600.0
ATTEMPTS, DEATHS = 3, 10
"""The number of times that a part may fail, or its worker die, before the job stops."""


def run(verb: str, parts: Parts[Any], waiting: list[Part], advance: Callable[..., None]) -> Outcome:
    with connected(parts.config.on) as ray:
        job = _PartsJob(ray, verb, parts, waiting, advance)
        try:
            watch(job)
        finally:
            parts.work.sweep()
    return job.outcome


@dataclass(eq=False)
class _WorkerSlot:
    """A worker, as the queue sees it."""

    actor: Any
    calls: dict[Any, str] = field(default_factory=dict)
    """References that are waited for → what they are: open, make or beat."""
    is_open: bool = False
    part: Part | None = None
    following: Part | None = None
    since: float = 0.0
    heard: float | None = None
    beaten: float = 0.0

    @property
    def leased(self) -> list[Part]:
        return [part for part in (self.part, self.following) if part is not None]


class _PartsJob(Processes):
    message = "Stopping …"

    def __init__(
        self, ray: Any, verb: str, parts: Parts[Any], waiting: list[Part], advance: Callable[..., None]
    ) -> None:
        self.ray, self.verb, self.parts, self.advance = ray, verb, parts, advance
        self.queue, self.undone = deque(waiting), {part.number for part in waiting}
        self.slots: list[_WorkerSlot] = []
        self.failures, self.deaths = Counter[int](), Counter[int]()
        self.slowest, self.spawned = 0.0, 0
        self.outcome, self.head, self.room = Outcome(), ClusterHead(ray, parts.config.on), 0
        self.resource = "GPU" if parts.uses_gpu and ray.cluster_resources().get("GPU") else "CPU"

    def wait(self, seconds: float) -> bool:
        self._spawn()
        self._lease()
        self._beat()
        references = {ref: slot for slot in self.slots for ref in slot.calls}
        ready: list[Any] = []
        if references:
            ready, _ = self.ray.wait(list(references), num_returns=1, timeout=seconds)
        else:  # all workers are gone, and so is the head, without which none is started
            time.sleep(seconds)
        for ref in ready:
            self._take(references[ref], ref)
        self._give_up()
        return bool(self.undone)

    def stop(self) -> None:
        """Nothing is to be saved: a part is whole or absent."""

    def end(self) -> None:
        for slot in self.slots:
            self._dismiss(slot)

    def _spawn(self) -> None:
        """Start as many workers as the cluster has room for, and no more than there are parts."""
        if self.head.look() or not self.room:
            self.room = self._room()
        while len(self.slots) < min(self.room, len(self.undone)) and not self.head.is_gone():
            self.spawned += 1
            order = Order.of(self.verb, self.parts, f"{self.parts.work.writer}.ray{self.spawned}")
            needs = {"num_cpus": 1, **({"num_gpus": 1} if self.resource == "GPU" else {})}
            kind = self.ray.remote(**needs, max_restarts=0, max_concurrency=2)(Worker)
            slot = _WorkerSlot(kind.remote(tuple(order)))
            slot.calls[slot.actor.open.remote()] = "open"
            self.slots.append(slot)

    def _room(self) -> int:
        """Cores or GPUs of the cluster. A head that ends meanwhile would never answer: then the number stays as it was."""
        answers: list[int] = []

        def ask() -> None:
            with contextlib.suppress(Exception):
                answers.append(int(self.ray.cluster_resources().get(self.resource, 0)))

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(1.0 if self.room else None)
        return max(1, answers[0] if answers else self.room)

    def _lease(self) -> None:
        for slot in self.slots:
            if not slot.is_open or slot.part is not None:
                continue
            slot.part, slot.following = slot.following or self._next(), None
            if slot.part is None:
                continue
            if len(self.queue) >= len(self.slots):
                slot.following = self._next()
            slot.since = time.monotonic()
            slot.calls[slot.actor.make.remote(slot.part, slot.following)] = "make"

    def _next(self) -> Part | None:
        return self.queue.popleft() if self.queue else None

    def _beat(self) -> None:
        now = time.monotonic()
        for slot in self.slots:
            if "beat" not in slot.calls.values() and now - slot.beaten > BEAT:
                slot.beaten = now
                slot.calls[slot.actor.beat.remote()] = "beat"

    def _take(self, slot: _WorkerSlot, ref: Any) -> None:
        """The answer of a worker, or its death."""
        if slot not in self.slots:
            return
        what = slot.calls.pop(ref)
        try:
            answer = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            self._lose(slot, error)
            return
        slot.heard = time.monotonic()
        if what == "open":
            self._opened(slot, *answer)
        elif what == "make":
            self._finished(slot, *answer)

    def _opened(self, slot: _WorkerSlot, facts: dict[str, Any] | None, failure: Any) -> None:
        if failure is not None:
            raise Failure(*failure).error()
        self.outcome.facts, slot.is_open = facts, True

    def _finished(self, slot: _WorkerSlot, counts: dict[str, int] | None, failure: Any) -> None:
        part, slot.part = slot.part, None
        assert part is not None
        if failure is None:
            self.slowest = max(self.slowest, time.monotonic() - slot.since)
            if part.number in self.undone:
                self.undone.remove(part.number)
                self.outcome.counts.update(counts or {})
                reused = (counts or {}).get("reused", 0)
                self.advance(part.size - reused, skipped=reused)
            return
        failed = Failure(*failure)
        self.failures[part.number] += 1
        if self.failures[part.number] >= ATTEMPTS:
            raise failed.error(f"the part {part.name} failed {ATTEMPTS} times: {failed.message}")
        log.detail(f"{part.name} failed and is tried again: {failed.message}")
        self.queue.append(part)

    def _lose(self, slot: _WorkerSlot, why: object) -> None:
        """A worker is gone: its parts return to the queue."""
        self._dismiss(slot)
        self.slots.remove(slot)
        for part in reversed(slot.leased):
            if part.number in self.undone:
                self.queue.appendleft(part)
        number = slot.part.number if slot.part else -1
        self.deaths[number] += 1
        reason = next(self._lines(why), type(why).__name__)
        log.detail(f"A worker is gone ({reason}); its parts return to the queue.")
        if self.deaths[number] >= DEATHS:
            what = slot.part.name if slot.part else "opening the stage"
            raise QontextError(
                f"{DEATHS} workers died at the same work ({what}): {reason}",
                place=self.parts.work.path,
                remedy="Look for what ended them, such as lack of memory; the same command resumes.",
            )

    @staticmethod
    def _lines(why: object) -> Iterator[str]:
        return (line.strip() for line in str(why).splitlines() if line.strip())

    def _give_up(self) -> None:
        """Workers that are silent, or for too long at one part."""
        now, lease = time.monotonic(), max(LEAST_LEASE, PATIENCE * self.slowest)
        for slot in list(self.slots):
            if slot.heard is not None and now - max(slot.heard, 0) > SILENCE:
                self._lose(slot, f"not heard of for {SILENCE:.0f} s")
            elif slot.part is not None and self.slowest and now - slot.since > lease:
                self._lose(slot, f"at one part for {lease:.0f} s")

    def _dismiss(self, slot: _WorkerSlot) -> None:
        with contextlib.suppress(Exception):
            self.ray.kill(slot.actor)
