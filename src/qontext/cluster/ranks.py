"""A training on a Ray cluster: ranks in a placement group, each with the environment that torchrun would set.

The ranks run the stage as under torchrun. All of them are needed: where one is lost, the others end, too, and the same
command resumes from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import qontext
from qontext.cluster.connect import ClusterHead, connected
from qontext.cluster.launcher import Processes, watch
from qontext.cluster.rank import LOCK, Ended, Line, Rank, RankAddress, TrainingOrder, environment_of
from qontext.cluster.worker import Failure
from qontext.frame import locks, log, process, trust
from qontext.frame.errors import QontextError

BEAT, SILENCE = 5.0, 60.0
"""Seconds between two signs of life, and without one until a rank counts as lost."""
PATIENCE = 120.0
"""Seconds until the resources of all ranks are free."""
GRACE, FAREWELL = 10.0, 30.0
"""Seconds to find the rank whose loss is the cause of other ranks' errors, and to finish a step after an interrupt."""


def run(verb: str, settings: Any, out: Path, overwrite: bool) -> None:
    """Run the training into `out`."""
    values = settings.model_dump(mode="json", exclude_unset=True, exclude={"on", "ranks"})
    training = TrainingOrder(
        verb, values, str(out.resolve()), overwrite, str(Path.cwd()), qontext.__version__, trust.decision()
    )
    with locks.lock(out, LOCK), connected(settings.on) as ray:
        uses_gpu = settings.device != "cpu" and bool(ray.cluster_resources().get("GPU"))
        count = _count(ray, settings, uses_gpu)
        group = _placement(ray, count, uses_gpu)
        ranks = _Ranks(ray, settings.on)
        try:
            ranks.spawn(group, count, uses_gpu, training)
            watch(ranks)
        finally:
            ranks.end()
            if not ranks.head.is_gone():
                with contextlib.suppress(Exception):
                    ray.util.remove_placement_group(group)


def _machines(ray: Any) -> dict[str, int]:
    """Node → its cores, for those that have some."""
    alive = (node for node in ray.nodes() if node["Alive"])
    return {
        node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in alive if node["Resources"].get("CPU")
    }


def _count(ray: Any, settings: Any, uses_gpu: bool) -> int:
    """The number of ranks."""
    resource = "GPU" if uses_gpu else "CPU"
    room = int(ray.cluster_resources().get(resource, 0))
    if settings.ranks is None:
        most = room if uses_gpu else len(_machines(ray))
        return next((n for n in range(most, 0, -1) if settings.batch_size % n == 0), 1)
    if settings.ranks > room:
        raise QontextError(
            f"there are {settings.ranks} ranks, but the cluster has {room} {resource}s",
            remedy=f"Set --ranks to at most {room}.",
        )
    return int(settings.ranks)


def _placement(ray: Any, count: int, uses_gpu: bool) -> Any:
    bundle = {"CPU": 1, **({"GPU": 1} if uses_gpu else {})}
    group = ray.util.placement_group([bundle] * count, strategy="PACK" if uses_gpu else "SPREAD")
    started = time.monotonic()
    while not group.wait(timeout_seconds=1):
        process.check_interrupt()
        if time.monotonic() - started > PATIENCE:
            ray.util.remove_placement_group(group)
            raise QontextError(
                f"the cluster had no room for {count} ranks within {PATIENCE:.0f} s",
                remedy="Wait for other jobs, or set fewer --ranks.",
            )
    return group


class _Ranks(Processes):
    """The ranks of a training, as the command sees them."""

    def __init__(self, ray: Any, on: str) -> None:
        self.ray, self.head = ray, ClusterHead(ray, on)
        self.actors: list[Any] = []
        self.places: list[RankAddress] = []
        self.running: dict[Any, int] = {}
        self.beats: dict[Any, int] = {}
        self.heard: list[float] = []
        self.said = Counter[int]()
        """Rank → the number of its messages that were shown."""
        self.beaten = 0.0

    def spawn(self, group: Any, count: int, uses_gpu: bool, training: TrainingOrder) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needs = {"num_cpus": 1, **({"num_gpus": 1} if uses_gpu else {})}
        for rank in range(count):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            kind = self.ray.remote(**needs, max_restarts=0, max_concurrency=3, scheduling_strategy=strategy)(
                Rank
            )
            self.actors.append(kind.remote(tuple(training)))
        for rank, actor in enumerate(self.actors):
            try:
                self.places.append(RankAddress(*self.ray.get(actor.place.remote(), timeout=PATIENCE)))
            except self.ray.exceptions.RayError as error:
                raise self._lost(rank, error) from None
        names = ", ".join(f"{name} ({n})" for name, n in Counter(place.name for place in self.places).items())
        log.note(f"Training with {count} rank{'s' * (count > 1)}: {names}.")
        launch, cores = uuid.uuid4().hex, _machines(self.ray)
        there = Counter(place.node for place in self.places)
        for rank, (actor, place) in enumerate(zip(self.actors, self.places)):
            threads = max(1, cores.get(place.node, 1) // there[place.node])
            environment = environment_of(rank, self.places, threads, launch)
            self.running[actor.run.remote(environment)] = rank
        self.heard = [time.monotonic()] * count

    def wait(self, seconds: float) -> bool:
        try:
            self._beat()
            self._take(seconds)
            self._look()
        except QontextError:
            if self.head.is_gone():  # which would end the ranks
                self._stop(FAREWELL / 2)
            raise
        return bool(self.running)

    def stop(self) -> None:
        self._stop(FAREWELL)

    def end(self) -> None:
        for actor in self.actors:
            with contextlib.suppress(Exception):
                self.ray.kill(actor)

    def _beat(self) -> None:
        if time.monotonic() - self.beaten > BEAT:
            self.beaten, waiting = time.monotonic(), set(self.beats.values())
            for rank in {*self.running.values()} - waiting:
                self.beats[self.actors[rank].beat.remote(self.said[rank])] = rank

    def _take(self, seconds: float) -> None:
        """Answers of ranks, and their deaths."""
        ready, _ = self.ray.wait([*self.running, *self.beats], num_returns=1, timeout=seconds)
        for ref in ready:
            is_end = ref in self.running
            rank = (self.running if is_end else self.beats).pop(ref)
            try:
                answer = self.ray.get(ref)
            except self.ray.exceptions.RayError as error:
                raise self._lost(rank, error) from None
            self.heard[rank] = time.monotonic()
            if not is_end:
                if rank in self.running.values():  # otherwise its end has brought these messages
                    self._show(rank, answer)
                continue
            ended = Ended(*answer)
            self._show(rank, ended.lines[self.said[rank] :])
            if ended.interrupted:
                self.stop()
                raise KeyboardInterrupt
            if ended.failure is not None:
                raise self._cause(rank, ended)

    def _show(self, rank: int, lines: Sequence[Line]) -> None:
        for level, line in lines:
            log.logger.log(level, line)
        self.said[rank] += len(lines)

    def _cause(self, rank: int, ended: Ended) -> QontextError:
        """The error of a rank; or the loss of another one, after which its connection broke."""
        until = time.monotonic() + GRACE
        while not ended.is_plain and self.running and time.monotonic() < until:
            ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=1.0)
            for ref in ready:
                other = self.running.pop(ref)
                try:
                    answer = Ended(*self.ray.get(ref))
                except self.ray.exceptions.RayError as error:
                    return self._lost(other, error)
                ended = answer if answer.failure is not None and answer.is_plain else ended
        assert ended.failure is not None
        return Failure(*ended.failure).error()

    def _lost(self, rank: int, why: object) -> QontextError:
        where = self.places[rank].name if rank < len(self.places) else "its node"
        reason = next((line.strip() for line in str(why).splitlines() if line.strip()), type(why).__name__)
        return QontextError(
            f"rank {rank} of {len(self.actors)} on {where} is lost ({reason.rstrip('.')}), and the others ended with it",
            remedy="The same command resumes from the last checkpoint.",
        )

    def _look(self) -> None:
        """Refuse to wait for ranks that were cut off, or for a cluster without its head."""
        self.head.look()
        now = time.monotonic()
        for rank in self.running.values():
            if now - self.heard[rank] > SILENCE:
                raise self._lost(rank, f"not heard of for {SILENCE:.0f} s")

    def _stop(self, seconds: float) -> None:
        """Let the ranks finish and save their step."""
        with contextlib.suppress(Exception):
            for actor in self.actors:
                actor.stop.remote()
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=seconds)
