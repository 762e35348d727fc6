"""`qontext demo`: `adapt` on text that is already on this machine, without configuration or downloads."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from qontext.frame import log
from qontext.frame.config import Action, Input, StageConfig
from qontext.frame.stages import Pipeline

INTRODUCTION = """\
This makes the documentation of the Python packages on this machine searchable, by meaning and by words. It reads their
docstrings, removes their summaries (human-written questions, used only for evaluation), generates pseudo-queries for
the passages, trains a small encoder on them, and reports whether that helped. Nothing is downloaded. You can interrupt
it at any time: the same command resumes.
"""


class DemoConfig(StageConfig):
    out: str = "runs/demo"
    """Output directory."""

    source: Annotated[str, Input()] = "pydocs:"
    """Documents: pydocs: for all installed Python packages, or pydocs:NAME,NAME."""

    passages: int = Field(2000, ge=10)
    """Approximate number of passages to read."""

    budget: str = "5m"
    """Approximate time budget, such as 90s, 10m or 2h; a number alone is in minutes."""

    yes: Annotated[bool, Action()] = False
    """Start without asking, even if the plan exceeds a budget that was set. The default budget is only a target."""


def run(settings: DemoConfig) -> dict[str, Any]:
    from qontext.adapt.config import AdaptConfig
    from qontext.adapt.run import run as adapt
    from qontext.models.reference import default_encoder
    from qontext.retrieve.directory import is_adapted

    log.note(INTRODUCTION)
    encoder = () if is_adapted(settings.out) else (default_encoder(),)
    values: dict[str, Any] = {"documents": settings.source, "out": settings.out, "encoder": encoder}
    values |= {"passages": settings.passages, "budget": settings.budget}
    values["yes"] = settings.yes or "budget" not in settings.model_fields_set
    return adapt(AdaptConfig.make(values, where="demo"))


DEMO = Pipeline(
    verb="demo",
    config=DemoConfig,
    run=run,
    examples="""
        qontext demo
        qontext demo --source pydocs:numpy --passages 1000 --budget 3m --out runs/numpy
    """,
)
