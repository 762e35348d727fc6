"""What can be known of the inputs of a recipe's step before the first step runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from qontext.data.collection import load_collection
from qontext.evaluation.beir import BeirConfig, folders_of
from qontext.evaluation.datasets import BENCHMARKS
from qontext.evaluation.evaluate import EvaluateConfig
from qontext.frame.config import StageConfig, existing
from qontext.frame.errors import QontextError, choose
from qontext.frame.inputs import check_input, named_inputs

FILES = {
    "data", "queries", "passages", "groups", "run", "also", "index", "texts", "dev", "probe", "teacher", "scores",
    "next_run", "answers",
}  # fmt: skip
"""The inputs that are files or folders; others may be names of models, sources and benchmarks."""
SPLITS = {"data": "split", "qrels": "split", "groups": "split", "dev": "dev_split", "probe": "probe_split"}
"""The inputs that may be folders in BEIR's layout → the setting with their split."""


def problems_of(settings: StageConfig, coming: Collection[str]) -> Iterator[tuple[str, str]]:
    """(problem, place) of each input that is not there, or lacks a split. `coming` are the outputs of earlier steps."""
    for field, value in named_inputs(settings):
        if value in coming:
            continue
        try:
            _look(settings, field.partition("[")[0], value)
        except QontextError as error:
            yield error.message, str(error.place or value)
    if isinstance(settings, BeirConfig):
        try:
            folders_of(settings)
        except QontextError as error:
            yield error.message, str(error.place or settings.data_root or "sets")


def _look(settings: StageConfig, field: str, value: str) -> None:
    path = check_input(value, field)
    if path is None:
        if field in FILES:
            existing(value, field)
        if field == "qrels" and isinstance(settings, EvaluateConfig):
            choose(value, BENCHMARKS, "benchmark")
    elif field in SPLITS and not (field == "data" and "qrels" in type(settings).model_fields):
        split = getattr(settings, SPLITS[field], None)
        if split is not None and any(Path(path).glob("corpus.jsonl*")):
            choose(split, load_collection(path).splits, f"split of {path}")
