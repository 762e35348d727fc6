"""Parts and trainings on a Ray cluster.

Parts: an actor per GPU or core opens the stage once, and is given one part after the other. The part of an actor that died
is given to another one: a part appears by rename, with the same bytes, whoever makes it.

Trainings: an actor per rank, with the environment that torchrun would set. All of them are needed: where one is lost, the
others are ended, and the same command resumes from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import socket
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import qontext
from qontext.frame import artifacts, log, process, stages, trust
from qontext.frame.artifacts import CLAIM, Workdir
from qontext.frame.errors import QontextError, first_line, missing_extra
from qontext.frame.parts import Outcome, Part, Parts, cluster
from qontext.frame.process import StopRequests

DEATHS = 3
"""The number of times that the process of a part may die before the job stops."""
LOOK, ROOM, FAREWELL = 5.0, 120.0, 30.0
"""Seconds between two looks for nodes that joined, until all ranks have room, and to finish a step after an interrupt."""
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@contextlib.contextmanager
def connected(on: str, *, log_to_driver: bool = False) -> Iterator[Any]:
    """The module `ray`, connected to a cluster, or to a new one on this machine alone."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise missing_extra("ray", "scale", f"--on {on}") from None
    if ray.is_initialized():  # by the program that calls this one
        yield ray
        return
    trust.require(cluster({"on": on}))
    try:
        ray.init(
            None if on == "ray" else on,
            logging_level="ERROR",
            log_to_driver=log_to_driver,
            include_dashboard=False,
        )
    except Exception as error:
        raise QontextError(
            f"cannot connect to the Ray cluster at {on}: {first_line(error)}",
            remedy="Check the address (ray start prints it) and RAY_AUTH_TOKEN.",
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


class Order(NamedTuple):
    """The stage that an actor runs."""

    verb: str
    settings: dict[str, Any]
    out: str
    overwrite: bool
    folder: str
    """The directory in which the command was started: relative names start there."""
    version: str
    trusted: Any
    """The user's permissions for the command (see `frame.trust`)."""

    @classmethod
    def of(cls, verb: str, settings: dict[str, Any], out: Path, overwrite: bool = False) -> Order:
        place = str(out.resolve()), overwrite, str(Path.cwd())
        return cls(verb, settings, *place, qontext.__version__, trust.decision())

    def begin(self) -> tuple[Any, Any]:
        """The stage and its configuration, in the actor's process."""
        if qontext.__version__ != self.version:
            raise QontextError(
                f"the node {platform.node()} has qontext {qontext.__version__}, the command was started with "
                f"{self.version}"
            )
        os.chdir(self.folder)
        trust.inherit(self.trusted)
        stage = stages.load(self.verb)
        return stage, stage.config.make(self.settings, where=self.verb)


def run(verb: str, parts: Parts[Any], waiting: list[Part], advance: Callable[..., None]) -> Outcome:
    """Make parts on the cluster."""
    outcome, queue, deaths = Outcome(), deque(waiting), Counter[int]()
    settings = parts.config.model_dump(mode="json", exclude_unset=True) | {"on": "local", "shard": None}
    if "workers" in type(parts.config).model_fields:
        settings["workers"] = 1  # the cluster has a process per core
    order = Order.of(verb, settings, parts.work.path)
    key = artifacts.read_description(parts.work.path / CLAIM)["key"]
    idle: list[Any] = []
    running: dict[Any, tuple[Any, Part]] = {}
    writers = itertools.count(1)
    with connected(parts.config.on) as ray:
        resource = "GPU" if parts.uses_gpu and ray.cluster_resources().get("GPU") else "CPU"
        kind = ray.remote(num_cpus=1, num_gpus=int(resource == "GPU"))(Worker)
        try:
            while queue or running:
                while queue and len(running) < max(1, int(ray.cluster_resources().get(resource, 0))):
                    part = queue.popleft()
                    writer = f"{parts.work.writer}.ray{next(writers)}"
                    actor = idle.pop() if idle else kind.remote(order, key, writer)
                    running[actor.make.remote(part)] = actor, part
                for ref in ray.wait(list(running), timeout=LOOK)[0]:
                    actor, part = running.pop(ref)
                    try:
                        counts, outcome.facts = ray.get(ref)
                    except ray.exceptions.RayTaskError as error:
                        raise _cause(error) from error
                    except ray.exceptions.RayError as error:
                        deaths[part.number] += 1
                        if deaths[part.number] >= DEATHS:
                            raise QontextError(
                                f"{DEATHS} processes died at the part {part.name}: {first_line(error)}",
                                place=parts.work.path,
                            ) from None
                        queue.appendleft(part)
                        continue
                    if queue:
                        idle.append(actor)
                    else:  # its place is for an actor that waits for one, since a node is gone
                        ray.kill(actor)
                    outcome.counts.update(counts)
                    advance(part.size - counts.get("reused", 0), skipped=counts.get("reused", 0))
        finally:
            for actor in (*idle, *(actor for actor, _ in running.values())):
                ray.kill(actor)
            parts.work.sweep()
    return outcome


class Worker:
    """Makes parts of one stage."""

    def __init__(self, order: Order, key: str, writer: str) -> None:
        self.order, self.key, self.writer = order, key, writer
        self.parts: Parts[Any] | None = None

    def make(self, part: Part) -> tuple[dict[str, int], dict[str, Any]]:
        """Counts of the part, and facts about the opened stage."""
        if self.parts is None:
            stage, config = self.order.begin()
            claim = Path(self.order.out) / CLAIM
            if not claim.is_file() or artifacts.read_description(claim)["key"] != self.key:
                raise QontextError(
                    f"the node {platform.node()} does not see this directory",
                    place=self.order.out,
                    remedy="All nodes need a shared file system on which --out and the inputs have the same paths.",
                )
            opened: Parts[Any] = stage.run(config, Workdir(Path(self.order.out), self.writer))
            opened.open()
            self.parts = opened
        return dict(self.parts.make(part, self.parts.read(part))), self.parts.facts()


def _cause(error: Any) -> BaseException:
    """The error that an actor raised; others than sentences for users keep Ray's traceback."""
    return error.cause if isinstance(error.cause, QontextError) else error


def train(verb: str, settings: Any, out: Path, overwrite: bool) -> None:
    """Run a training into `out`, in a rank per GPU or machine."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    values = settings.model_dump(mode="json", exclude_unset=True, exclude={"on", "ranks"})
    order = Order.of(verb, values, out, overwrite)
    with connected(settings.on, log_to_driver=True) as ray:
        cores = {
            node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]
        }
        gpus = int(ray.cluster_resources().get("GPU", 0)) if settings.device != "cpu" else 0
        most = gpus or sum(count > 0 for count in cores.values())
        count = settings.ranks or next(n for n in range(max(1, most), 0, -1) if settings.batch_size % n == 0)
        bundle = {"CPU": 1, **({"GPU": 1} if gpus else {})}
        group = ray.util.placement_group([bundle] * count, strategy="PACK" if gpus else "SPREAD")
        actors: list[Any] = []
        try:
            if not group.wait(timeout_seconds=ROOM):
                raise QontextError(f"the cluster had no room for {count} ranks within {ROOM:.0f} s")
            for rank in range(count):
                strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
                kind = ray.remote(
                    num_cpus=1, num_gpus=int(gpus > 0), max_concurrency=2, scheduling_strategy=strategy
                )(Rank)
                actors.append(kind.remote(order))
            places = ray.get([actor.place.remote() for actor in actors])
            there = Counter(node for node, _, _ in places)
            launch, (_, address, port) = uuid.uuid4().hex, places[0]
            shared = {
                "WORLD_SIZE": str(count),
                "MASTER_ADDR": address,
                "MASTER_PORT": str(port),
                "LOCAL_RANK": "0",
            }
            shared |= {"TORCHELASTIC_RUN_ID": launch}
            runs = []
            for rank, (actor, (node, _, _)) in enumerate(zip(actors, places)):
                threads = str(max(1, cores.get(node, 1) // there[node]))
                own = (
                    {"OMP_NUM_THREADS": threads, "RANK": str(rank), **shared}
                    if count > 1
                    else {"OMP_NUM_THREADS": threads}
                )
                runs.append(actor.run.remote(own))
            _wait(ray, actors, runs)
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, QontextError):
                raise cause from None
            raise QontextError(
                f"a rank of the training is lost, and the others ended with it: {first_line(error)}",
                remedy="The same command resumes from the last checkpoint.",
            ) from error
        finally:
            for actor in actors:
                ray.kill(actor)
            ray.util.remove_placement_group(group)


def _wait(ray: Any, actors: list[Any], runs: list[Any]) -> None:
    """Wait for all ranks, or for the error of the first one; an interrupt lets them finish and save their step."""
    with StopRequests() as request:
        while runs and not request.requested:
            ready, runs = ray.wait(runs, timeout=1.0)
            ray.get(ready)
        if request.requested:
            for actor in actors:
                actor.stop.remote()
            ray.wait(runs, num_returns=len(runs), timeout=FAREWELL)


class Rank:
    """One process of a training."""

    def __init__(self, order: Order) -> None:
        self.order = order

    def place(self) -> tuple[str, str, int]:
        """The node, its address, and a free port."""
        import ray

        address = ray.util.get_node_ip_address()
        with socket.create_server((address, 0)) as free:
            return ray.get_runtime_context().get_node_id(), address, int(free.getsockname()[1])

    def run(self, environment: dict[str, str]) -> None:
        from qontext.frame import execution

        os.environ.update(environment)
        log.show(log.NOTE if process.speaks() else log.WARNING)
        stage, config = self.order.begin()
        with contextlib.suppress(KeyboardInterrupt):  # the command that asked for it says so
            execution.execute(stage, config, Path(self.order.out), overwrite=self.order.overwrite)

    def stop(self) -> None:
        """Finish the current step, save it, and end."""
        process.request_stop()
