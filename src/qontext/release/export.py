"""`qontext export`: vectors or a model in the format of another tool."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.stages import Stage
from qontext.release import FORMATS


class ExportConfig(StageConfig):
    kinds: ClassVar = {"to": FORMATS}

    source: Annotated[str, Input(positional=True)]
    """What to export. Parquet: vectors from `encode`, an index from `index`, or what `adapt` made. All other formats: a
    retriever, as a folder or Hub name, or what `adapt` made."""

    to: str = "parquet"
    """The format."""


def run(config: ExportConfig, work: Workdir) -> dict[str, Any]:
    summary: dict[str, Any] = FORMATS.load(config.to).export(config.source, work, config.options("to"))
    return summary


STAGE = Stage(
    "export",
    ExportConfig,
    run,
    """
        qontext export vectors --to parquet --out exported
        qontext export runs/mine --to parquet --out exported
        qontext export retriever --to onnx --out exported
        qontext export retriever --to onnx-int8 --check data --out exported
        qontext export retriever --to static --dimensions 128 --out exported
    """,
)
