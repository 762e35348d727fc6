"""Checks of the inputs of a recipe's steps before the first one runs: each is opened as the step will open it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from qontext.corpus.sentences import WORDS
from qontext.corpus.sources import Problem
from qontext.corpus.split import SplitConfig, open_documents
from qontext.data import dpr, records
from qontext.data.collection import load_collection, read_passages, read_qrels, read_queries
from qontext.data.lines import plain_name, read_lines
from qontext.data.runs import read_run
from qontext.evaluation.answers import is_questions, read_questions
from qontext.evaluation.benchmarks import BENCHMARKS
from qontext.evaluation.evaluate import EvaluateConfig
from qontext.finetune.negatives.groups import read_candidates, read_groups
from qontext.finetune.negatives.mine import MineConfig
from qontext.frame import artifacts
from qontext.frame.config import StageConfig, existing
from qontext.frame.errors import QontextError, choose
from qontext.frame.inputs import check_input, named_inputs
from qontext.models.folder import locate
from qontext.models.tokenizer import check_tokenizer_files
from qontext.queries.generate import GenerateConfig
from qontext.queries.generators.file import read_queries_by_passage
from qontext.retrieve.directory import is_adapted
from qontext.retrieve.index.build import IndexConfig

FILES = {
    "data", "queries", "passages", "groups", "run", "also", "index", "texts", "dev", "probe", "teacher", "scores",
    "next_run", "answers",
}  # fmt: skip
"""The inputs that are files or folders; others may be names of models, sources and benchmarks."""
SPLITS = {"data": "split", "qrels": "split", "groups": "split", "dev": "dev_split", "probe": "probe_split"}
"""The inputs that may be folders in BEIR's layout → the setting with their split."""
MODELS = {"encoder", "retriever", "reranker", "model", "batch_teacher", "question_model"}
"""The inputs that are models: a folder, a GGUF file, or another name."""
LINES = 5
"""The lines of a file that are read."""


def problems_of(settings: StageConfig, coming: Collection[str]) -> Iterator[tuple[str, str]]:
    """(problem, place) of each input that is not there, is not what the step reads, or lacks a split. `coming` are the
    outputs of earlier steps."""
    for field, value in named_inputs(settings):
        if value in coming:
            continue
        try:
            _look(settings, field.partition("[")[0], value)
        except QontextError as error:
            yield error.message, str(error.place or value)


def _look(settings: StageConfig, field: str, value: str) -> None:
    path = check_input(value, field)
    if field == "tokenizer" and value == WORDS:
        return  # a rule of counting, even beside a folder of that name
    if path is None:
        if field in FILES:
            existing(value, field)
        if field == "qrels" and isinstance(settings, EvaluateConfig):
            choose(value, BENCHMARKS, "benchmark")
    elif field in MODELS:
        _look_at_model(path, value)
    elif field == "tokenizer":
        check_tokenizer_files(path)
    elif isinstance(settings, SplitConfig):
        _look_at_documents(settings, path)
    elif isinstance(settings, IndexConfig) and settings.backend != "bm25":
        artifacts.open_artifact(path, verb="encode")
    elif field == "index" and not is_adapted(path):
        artifacts.open_artifact(path)
    elif any(path.glob("corpus.jsonl*")) or field in ("data", "probe"):
        splits = load_collection(path).splits
        takes_split = field in SPLITS and not (field == "data" and "qrels" in type(settings).model_fields)
        if takes_split and (split := getattr(settings, SPLITS[field], None)) is not None:
            choose(split, splits, f"split of {path}")
    elif (read := _reader(settings, field)) is not None:
        _read_start(path, read)


def _look_at_model(path: Path, value: str) -> None:
    if path.is_dir():
        locate(value)
    elif path.suffix != ".gguf":
        raise QontextError("is a file, expected the folder of a model", place=path)


def _look_at_documents(settings: SplitConfig, path: Path) -> None:
    """Open the documents, and read the first one of a file of records."""
    opened = open_documents(settings)
    if path.is_file() and plain_name(path).endswith((".jsonl", ".tsv", ".parquet")):
        first = next(opened.documents(), None)
        if isinstance(first, Problem) and settings.on_error == "stop":
            raise QontextError(first.message, place=first.place)


def _reader(settings: StageConfig, field: str) -> Callable[[Path], Any] | None:
    """The function with which the step reads this input, of inputs that are files of texts, judgments, groups or runs."""
    is_mine = isinstance(settings, MineConfig)
    if field == "source" and not isinstance(settings, IndexConfig):
        return None
    if is_mine and field == "qrels" and settings.model_dump().get("positives_share"):
        field = "scores"
    if field == "qrels" and isinstance(settings, EvaluateConfig):
        return lambda path: read_questions(path) if is_questions(path) else read_qrels(path)
    candidates = read_candidates if is_mine else read_run
    readers: dict[str, Callable[[Path], Any]] = {
        "passages": lambda path: next(read_passages(path), None),
        "texts": lambda path: next(read_passages(path), None),
        "source": lambda path: next(read_passages(path), None),
        "queries": _first_generated if isinstance(settings, GenerateConfig) else read_queries,
        "qrels": read_qrels,
        "groups": lambda path: next(read_groups(path), None),
        "run": candidates, "also": candidates, "runs": read_run, "teacher": read_run, "scores": read_run,
        "next_run": read_run,
    }  # fmt: skip
    return readers.get(field)


def _first_generated(path: Path) -> None:
    """Read queries as the generator `file` does: by passage, of which each may have several."""
    next(read_queries_by_passage(path), None)


def _read_start(path: Path, read: Callable[[Path], Any]) -> None:
    """Read the first lines or rows of a file. Outputs of stages are left to the step."""
    name = plain_name(path)
    if path.is_dir():
        if (
            not artifacts.is_artifact(path)
            and not any(path.glob("*.parquet"))
            and not (path / "run.trec").exists()
        ):
            raise QontextError("is a folder without anything that this step reads", place=path)
        return
    if dpr.is_training_file(path):  # a list in one piece, whose questions are read one by one
        next(dpr.questions(path), None)
        next(dpr.labeled(path), None)
        return
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / Path(name).name
        if name.endswith(".parquet"):
            records.write_table(start, records.first_rows(path, LINES))
        else:
            lines = [line for _, line in islice(read_lines(path), LINES)]
            start.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        try:
            read(start)
        except QontextError as error:
            raise QontextError(error.message, place=str(error.place).replace(str(start), str(path))) from None
