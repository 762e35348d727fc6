"""`qontext demo`: `adapt` on text that is already on this machine, with nothing to configure and nothing downloaded."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from qontext import log
from qontext.config import Input, StageConfig
from qontext.stages import Command

INTRODUCTION = """\
This makes the documentation of the Python packages on this machine searchable, by meaning and by words. It reads their
docstrings, takes the summaries out of the passages that they describe (questions that people wrote: they measure the
result, and are never trained on), writes pseudo-queries for the passages, trains a small encoder on them, and says what
that was worth. Nothing is downloaded. Interrupt it at any time: the same command goes on from there.
"""


class DemoConfig(StageConfig):
    out: str = "runs/demo"
    """The directory for everything that is made."""

    source: Annotated[str, Input()] = "pydocs:"
    """What to read: pydocs: for all installed Python packages, pydocs:NAME,NAME for some."""

    passages: int = Field(2000, ge=10)
    """About how many passages to read."""

    budget: str = "8m"
    """About how long it may take."""


def run(settings: DemoConfig) -> dict[str, Any]:
    from qontext.adapt.run import AdaptConfig
    from qontext.adapt.run import run as adapt

    log.note(INTRODUCTION)
    return adapt(
        AdaptConfig(
            documents=settings.source, out=settings.out, passages=settings.passages, budget=settings.budget
        )
    )


DEMO = Command(
    verb="demo",
    config=DemoConfig,
    run=run,
    examples="""
        qontext demo
        qontext demo --source pydocs:numpy --passages 1000 --budget 3m --out runs/numpy
    """,
)
