"""A stage that is a list of independent parts, and the settings that say where these are made.

    plan → parts        what there is to make; the same list in every process
    open                loads the model, once per worker
    read, make          one part: its own rows are read, and its file is written, whole or not at all
    finish → summary    once all parts are there

The stage knows no runner. A *runner* makes the parts that are not there yet, in whatever processes it has; the result
has the same digest for all of them. Runners are modules of `qontext.cluster`, which are imported when they are chosen.
"""

from __future__ import annotations

import importlib
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, NamedTuple, Protocol, Self, TypeVar, cast

from pydantic import AfterValidator, model_validator

from qontext.frame import log, process
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Asks, Machine, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.trust import Demand

RUNNERS = {"local": "qontext.cluster.local", "ray": "qontext.cluster.on_ray"}
"""The modules of the runners; each has a function `run` of the type `Runner`."""

_ADDRESS = re.compile(r"(ray://)?([\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}", re.ASCII)


def check_runs_on(on: str) -> str:
    """Refuse what is neither the name of a runner nor the address of a cluster."""
    if on not in RUNNERS and not _ADDRESS.fullmatch(on):
        raise QontextError(
            "expected local, ray, HOST:PORT or ray://HOST:PORT",
            remedy="Example: --on ray://10.0.0.1:10001",
        )
    return on


def cluster(values: Mapping[str, Any]) -> Iterator[Demand]:
    """A cluster that a file names: what comes back from it may run code here."""
    if (on := values.get("on")) is not None and on not in RUNNERS:
        yield Demand(f"join the cluster at {on}, which can run code here", (str(on),))


RunsOn = Annotated[str, Machine(), Asks(cluster), AfterValidator(check_runs_on)]
"""The type of the setting `on`."""


class PartsConfig(StageConfig):
    """Base of the configuration of a stage that is made of parts."""

    on: RunsOn = "local"
    """Runner of the parts: local (this process), ray (a Ray cluster that this machine belongs to, or a new one on
    this machine alone), or the address of a cluster, HOST:PORT or ray://HOST:PORT."""

    shard: Annotated[str | None, Machine()] = None
    """i/n: make every n-th part from the i-th on, so that n machines share the work (i from 0)."""

    @property
    def is_divisible(self) -> bool:
        """True if several processes can make the parts, under these settings."""
        return True

    @model_validator(mode="after")
    def _valid_shard(self) -> Self:
        process.share(self.shard)
        return self


class Part(NamedTuple):
    """One part: the rows [first, last) of what the stage reads."""

    number: int
    name: str
    """The file that stands for it: the last one that `make` writes."""
    first: int
    last: int
    size: float
    """The amount of work, in the stage's unit."""


C = TypeVar("C", bound=PartsConfig)


@dataclass
class Outcome:
    """The result of making parts by one command."""

    parts: Sequence[Part] = ()
    """All parts of the stage."""
    counts: Counter[str] = field(default_factory=Counter)
    """Sums of what `make` counted, over the parts that were made now."""
    seconds: float = 0.0
    facts: dict[str, Any] | None = None
    """Facts that a worker reported about the opened model, if any."""


class Parts(ABC, Generic[C]):
    """The work of one stage in one process: it plans and finishes, or opens and makes, or all of these."""

    unit: str = "parts"
    """The unit of progress."""
    advance: Callable[..., None] = staticmethod(lambda amount, *, skipped=0.0: None)
    """Called while a part is made, with the amount of work that is done; `skipped` is how much of the part is no work."""

    def __init__(self, config: C, work: Workdir) -> None:
        self.config, self.work = config, work

    @abstractmethod
    def plan(self) -> list[Part]:
        """All parts. It reads as little as it can: every process plans."""

    def open(self) -> None:
        """Load what making a part needs; called once per worker, before its first part."""

    def close(self) -> None:
        """Release what `open` opened; called once per worker on this machine, after its last part or an error."""

    def read(self, part: Part) -> Any:
        """The input of the part. Called in a thread, one part ahead."""

    @abstractmethod
    def make(self, part: Part, content: Any) -> Mapping[str, int]:
        """Write the part's files, `part.name` last. Returns counts for `finish`."""

    def facts(self) -> dict[str, Any]:
        """Facts about the opened model that `finish` needs, as JSON."""
        return {}

    @abstractmethod
    def finish(self, outcome: Outcome) -> dict[str, Any]:
        """The summary, once all parts are there."""

    @property
    def uses_gpu(self) -> bool:
        """True if a worker takes a GPU, where there are some."""
        return getattr(self.config, "device", "cpu") != "cpu"

    @property
    def reads_ahead(self) -> bool:
        return type(self).read is not Parts.read


class Runner(Protocol):
    def __call__(
        self, verb: str, parts: Parts[Any], waiting: list[Part], advance: Callable[..., None]
    ) -> Outcome: ...


def make_share(verb: str, kind: type[Parts[C]], config: C, work: Workdir) -> tuple[Parts[C], Outcome]:
    """Make those parts that fall to this process and are not there yet."""
    parts, started = kind(config, work), time.monotonic()
    planned = parts.plan()
    waiting = [part for part in planned if part.number % work.world == work.rank and not work.has(part.name)]
    total = sum(part.size for part in waiting) or None
    with log.progress(verb, total, parts.unit) as advance:
        outcome = runner(config.on)(verb, parts, waiting, advance) if waiting else Outcome()
    outcome.parts, outcome.seconds = planned, time.monotonic() - started
    return parts, outcome


def finish_all(parts: Parts[Any], outcome: Outcome) -> dict[str, Any]:
    """The summary of a stage whose parts are all there."""
    if outcome.facts is None and type(parts).facts is not Parts.facts:
        parts.open()  # another process, or an earlier one, made all parts
        outcome.facts = parts.facts()
    return parts.finish(outcome)


def missing(parts: Parts[Any], outcome: Outcome) -> int:
    """The number of parts that other processes still have to make."""
    return sum(not parts.work.has(part.name) for part in outcome.parts)


def runner(on: str) -> Runner:
    return cast(Runner, importlib.import_module(RUNNERS.get(on, RUNNERS["ray"])).run)


def slices(rows: int, size: int, name: Callable[[int], str], weight: float = 1) -> list[Part]:
    """`rows` rows in parts of `size`, the last one smaller."""
    starts = range(0, rows, size)
    return [
        Part(number, name(number), first, min(first + size, rows), weight * (min(first + size, rows) - first))
        for number, first in enumerate(starts)
    ]
