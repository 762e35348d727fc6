"""The rank of this process and the number of processes, from torchrun's environment variables; without them,
a single process.

Only this module reads these variables. Interrupt handling needs it before anything else is imported, so it
imports little.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qontext.frame.errors import QontextError

PAUSE = 0.2
"""Seconds between two polls of another process."""


def rank() -> int:
    """The rank of this process, from 0."""
    number = _number("RANK", 0, at_least=0)
    if number >= (count := world()):
        raise _error(f"the environment variable RANK is {number}, but WORLD_SIZE is {count}")
    return number


def speaks() -> bool:
    """Whether this process shows messages: only rank 0 does."""
    return os.environ.get("RANK", "") in ("", "0")


def world() -> int:
    """The number of processes that work together."""
    return _number("WORLD_SIZE", 1, at_least=1)


def share(shard: str | None) -> tuple[int, int]:
    """(index, count): the share of a sharded stage's parts that this process writes.

    `shard` names it for independent machines (``0/4``); under torchrun, each machine's share is divided among its
    ranks.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shard or "0/1")
    if not match or int(match[1]) >= int(match[2]):
        raise _error(
            f"the shard {shard!r} is not of the form i/n with i from 0 to n-1", remedy="Example: 0/4"
        )
    return int(match[1]) * world() + rank(), int(match[2]) * world()


def wait_until(condition: Callable[[], object]) -> None:
    """Poll until another process is done."""
    while not condition():
        time.sleep(PAUSE)


def local_rank() -> int | None:
    """The local rank of this process, from 0: the number of its GPU."""
    return _number("LOCAL_RANK", 0, at_least=0) if os.environ.get("LOCAL_RANK") else None


def start() -> str:
    """The id of this launch, so that ranks do not mistake the claim of an earlier launch for their own."""
    parts = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    return "/".join(os.environ.get(name, "") for name in parts)


def check_meeting_point() -> None:
    """Refuse several processes without a rendezvous address."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise _error(f"the environment variable WORLD_SIZE is {world()}, but {name} is not set")
    _number("MASTER_PORT", 0, at_least=0)


_REMEDY = "Start several processes with torchrun, or unset RANK, WORLD_SIZE and LOCAL_RANK for a single one."


def threads() -> int:
    """Threads per process from OMP_NUM_THREADS (the outermost level of a list); 0 if not set."""
    value = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) < 6 else 0


def _error(message: str, remedy: str = _REMEDY) -> QontextError:
    from qontext.frame.errors import QontextError

    return QontextError(message, remedy=remedy)


def _number(name: str, default: int, *, at_least: int) -> int:
    value = os.environ.get(name, "")
    if not value:
        return default
    # Up to nine ASCII digits: int() also accepts other digits, signs and underscores.
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) >= at_least):
        raise _error(
            f"the environment variable {name} is {value!r}, expected a whole number of at least {at_least}"
        )
    return int(value)
