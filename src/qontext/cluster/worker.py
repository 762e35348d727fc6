"""The process of a cluster that makes parts: the stage is opened once, then parts come one by one.

It is told what to do in plain values, and answers in plain values; errors are answers, too. It imports nothing of the
engine that started it.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import qontext
from qontext.frame import artifacts, stages, trust
from qontext.frame.artifacts import CLAIM, Workdir
from qontext.frame.errors import QontextError, first_line
from qontext.frame.parts import Part, Parts


class Order(NamedTuple):
    """The work of a worker."""

    verb: str
    settings: dict[str, Any]
    out: str
    folder: str
    """The directory in which the command was started: relative names start there."""
    key: str
    """The key of the claim in `out`."""
    version: str
    """The version of qontext with which the command was started."""
    writer: str
    trusted: Any
    """The user's permissions for the command (see `frame.trust`)."""

    @classmethod
    def of(cls, verb: str, parts: Parts[Any], writer: str) -> Order:
        out = parts.work.path.resolve()
        settings = parts.config.model_dump(mode="json", exclude_unset=True)
        settings |= {"on": "local", "shard": None}
        if "workers" in type(parts.config).model_fields:
            settings["workers"] = 1  # the cluster has a worker per core
        key = artifacts.read_description(out / CLAIM)["key"]
        return cls(
            verb, settings, str(out), str(Path.cwd()), key, qontext.__version__, writer, trust.decision()
        )


class Failure(NamedTuple):
    """An error as plain values."""

    message: str
    place: str | None = None
    remedy: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        if isinstance(error, QontextError):
            return cls(error.message, error.place, error.remedy)
        return cls(f"{type(error).__name__}: {first_line(error)}")

    def error(self, message: str | None = None) -> QontextError:
        return QontextError(message or self.message, place=self.place, remedy=self.remedy)


class Superseded(Exception):
    """The directory was finished by others while this worker made a part of it."""


class WorkerDirectory(Workdir):
    """Writes nothing into a directory that is finished: a worker that was given up may come back late."""

    @contextlib.contextmanager
    def write(self, name: str) -> Iterator[Path]:
        with super().write(name) as path:
            yield path
            if not self.has(CLAIM):
                raise Superseded(name)


class Worker:
    """Makes parts of one stage."""

    def __init__(self, order: Order) -> None:
        self.order = Order(*order)
        self.ahead: tuple[int, Future[Any]] | None = None
        self.pool = ThreadPoolExecutor(1)

    def beat(self) -> bool:
        """The heartbeat of this process."""
        return True

    def open(self) -> tuple[dict[str, Any] | None, Failure | None]:
        """The facts that `finish` needs, once this process is ready to make parts."""
        try:
            self._check()
            trust.inherit(self.order.trusted)
            stage = stages.load(self.order.verb)
            assert isinstance(stage.run, type), stage.verb
            config = stage.config.make(self.order.settings, where=stage.verb)
            self.parts = stage.run(config, WorkerDirectory(Path(self.order.out), self.order.writer))
            self.parts.open()
            return self.parts.facts(), None
        except Exception as error:
            return None, Failure.of(error)

    def make(self, part: Part, following: Part | None) -> tuple[dict[str, int] | None, Failure | None]:
        """Counts of the part; meanwhile, what the following part is made of is read."""
        part = Part(*part)
        try:
            content = self._content(part)
            if following is not None:
                self._read_ahead(Part(*following))
            if self.parts.work.has(part.name):  # made by a worker that was given up
                return {}, None
            return dict(self.parts.make(part, content)), None
        except Superseded:
            return {}, None
        except Exception as error:
            return None, Failure.of(error)

    def _read_ahead(self, part: Part) -> None:
        if self.parts.reads_ahead:
            self.ahead = (part.number, self.pool.submit(self.parts.read, part))

    def _content(self, part: Part) -> Any:
        ahead, self.ahead = self.ahead, None
        if ahead is None or ahead[0] != part.number:
            self._read_ahead(part)
            ahead, self.ahead = self.ahead, None
        return None if ahead is None else ahead[1].result()

    def _check(self) -> None:
        """Refuse a machine that cannot work on this."""
        order, claim = self.order, Path(self.order.out) / CLAIM
        is_ours = claim.is_file() and artifacts.read_description(claim)["key"] == order.key
        check_node(order.version, order.folder, Path(order.out), sees=is_ours)


def check_node(version: str, folder: str, out: Path, *, sees: bool) -> None:
    """Refuse a machine with another version of the package, or that does not see the output directory or the `folder` in
    which the command was started; then work in this folder."""
    here = platform.node()
    if qontext.__version__ != version:
        raise QontextError(
            f"the node {here} has qontext {qontext.__version__}, the command was started with {version}",
            remedy="Install the same version on all nodes.",
        )
    if not sees:
        raise QontextError(
            f"the node {here} does not see this directory",
            place=out,
            remedy="All nodes need a shared file system on which --out and the inputs have the same paths.",
        )
    try:
        os.chdir(folder)
    except OSError:
        raise QontextError(
            f"the node {here} does not see this directory, in which the command was started",
            place=folder,
            remedy="Start it in a directory of the shared file system.",
        ) from None
