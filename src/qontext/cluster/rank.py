"""The process of a cluster that is one rank of a training: it gets the environment that torchrun sets, and runs the stage.

It is told what to do in plain values, and answers in plain values; errors are answers, too.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qontext.cluster.worker import Failure, check_node
from qontext.frame import log, process
from qontext.frame.errors import QontextError

LOCK = ".ranks"
"""The lock of the command in the output directory: a node that does not see it sees another directory."""
_SIOCGIFADDR = 0x8915


class TrainingOrder(NamedTuple):
    """The stage that the ranks run."""

    verb: str
    settings: dict[str, Any]
    out: str
    overwrite: bool
    folder: str
    """The directory in which the command was started: relative names start there."""
    version: str
    trusted: Any
    """The user's permissions for the command (see `frame.trust`)."""


class RankAddress(NamedTuple):
    """The place of a rank."""

    address: str
    port: int
    """A port that nobody listens at."""
    node: str
    name: str


Line = tuple[int, str]
"""A message with its level."""


class Ended(NamedTuple):
    """The end of a rank, with all its messages; `is_plain` if with an error that is a sentence of its own."""

    failure: Failure | None = None
    is_plain: bool = True
    interrupted: bool = False
    lines: Sequence[Line] = ()


class Rank:
    """One process of a training."""

    def __init__(self, training: TrainingOrder) -> None:
        self.training = TrainingOrder(*training)
        self.lines: list[Line] = []
        self.address = ""

    def place(self) -> RankAddress:
        import ray

        self.address = str(ray.util.get_node_ip_address())
        with socket.create_server((self.address, 0)) as free:
            port = int(free.getsockname()[1])
        return RankAddress(
            self.address, port, str(ray.get_runtime_context().get_node_id()), socket.gethostname()
        )

    def beat(self, known: int) -> list[Line]:
        """The messages after the `known` first ones; also the heartbeat."""
        return self.lines[known:]

    def stop(self) -> None:
        """Finish the current step, save it, and end."""
        process.request_stop()

    def run(self, environment: dict[str, str]) -> tuple[Any, ...]:
        os.environ.update(environment)
        if name := interface_of(self.address):
            for library in ("GLOO", "NCCL"):  # they would look the host name up, which may be another address
                os.environ.setdefault(f"{library}_SOCKET_IFNAME", name)
        log.logger.addHandler(_Kept(self.lines))
        log.logger.setLevel(log.NOTE if environment.get("RANK", "0") == "0" else log.WARNING)
        try:
            self._train()
            return tuple(Ended(lines=self.lines))
        except KeyboardInterrupt:
            return tuple(Ended(interrupted=True, lines=self.lines))
        except Exception as error:
            return tuple(Ended(Failure.of(error), isinstance(error, QontextError), lines=self.lines))

    def _train(self) -> None:
        from qontext.frame import execution, stages, trust
        from qontext.frame.stages import Stage

        training, out = self.training, Path(self.training.out)
        check_node(training.version, training.folder, out, sees=(out / f".lock{LOCK}").is_file())
        trust.inherit(training.trusted)
        stage = stages.load(training.verb)
        assert isinstance(stage, Stage), stage.verb
        config = stage.config.make(training.settings, where=stage.verb)
        execution.execute(stage, config, out, overwrite=training.overwrite)


class _Kept(logging.Handler):
    def __init__(self, lines: list[Line]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))


def interface_of(address: str) -> str | None:
    """The network interface with this IPv4 address."""
    import fcntl  # Ray clusters are of Linux and macOS

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
            except OSError:  # it has no such address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def environment_of(rank: int, places: list[RankAddress], threads: int, launch: str) -> dict[str, str]:
    """torchrun's variables for this rank. A GPU that Ray assigns is the only one that the process sees: number 0."""
    shared = {"OMP_NUM_THREADS": str(threads)}
    if len(places) == 1:
        return shared
    return {
        **shared,
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(len(places)),
        "MASTER_ADDR": places[0].address,
        "MASTER_PORT": str(places[0].port),
        "TORCHELASTIC_RUN_ID": launch,
    }
