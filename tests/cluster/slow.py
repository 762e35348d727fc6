"""A generator of queries that takes its time, and does what files in a folder tell it to do.

die ID      the process that makes the part of this passage is killed, once
stop ID     it is stopped, once: it still exists, but is not heard of
poison ID   making the part of this passage is an error
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from qontext.data.collection import Passage
from qontext.frame.config import Options
from qontext.queries.generators import Generator


class SlowOptions(Options):
    pause: float = Field(0.0, ge=0)
    """Seconds that a part takes."""

    signals: str = ""
    """The folder."""


class Slow(Generator):
    Options = SlowOptions
    part_passages = 4

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        signals = Path(self.options.signals)
        if self.options.signals:
            for passage in passages:
                for order, number in (("die", signal.SIGKILL), ("stop", signal.SIGSTOP)):
                    if (signals / f"{order} {passage.id}").exists():
                        (signals / f"{order} {passage.id}").unlink()
                        os.kill(os.getpid(), number)
                if (signals / f"poison {passage.id}").exists():
                    with (signals / f"poison {passage.id}").open("a") as file:
                        file.write("tried\n")
                    raise ValueError(f"{passage.id} cannot be read")
        time.sleep(self.options.pause)
        yield from ((number, [f"what about {passage.id}"]) for number, passage in enumerate(passages))
