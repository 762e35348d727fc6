"""The verbs: one table, from which the command line, recipes and Python calls are generated. A verb is one of
four types:

- A `Stage` writes one directory: ``run(config, work) -> summary``. The directory is finished or can be
  resumed, its `meta.json` describes it, and repeating the command does nothing. Only a stage can be a step
  of a recipe.
- A `Report` reads and returns its result. It writes nothing.
- A `Pipeline` runs stages, each in its own directory below the setting `out`. Finished stages are skipped.
- A `Server` answers requests until it is stopped.

The table contains each verb's module and help line, so that listing the verbs does not import them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from qontext.frame.artifacts import Workdir
from qontext.frame.errors import choose

if TYPE_CHECKING:  # listing the verbs does not need pydantic
    from qontext.frame.config import StageConfig
    from qontext.frame.parts import Parts

C = TypeVar("C", bound="StageConfig")


@dataclass(frozen=True)
class Verb:
    """One line of `qontext --help`: module, heading and description."""

    module: str
    panel: str
    help: str
    takes_objects: bool = False
    """True if the verb's Python function is the one of its name in the module, which takes objects as well as paths."""


@dataclass(frozen=True)
class Stage(Generic[C]):
    """A verb that turns inputs into a directory. Without an output directory it is the report `without_out`, if it has one.

    `format` is incremented when the same settings produce a different result, so that results of older
    versions are not reused.
    """

    verb: str
    config: type[C]
    run: Callable[[C, Workdir], dict[str, Any] | None] | type[Parts[Any]]
    """Writes the directory and returns the summary; or the parts that the stage is made of."""
    examples: str
    format: int = 1
    without_out: Report[C] | None = None
    """The report that is run without an output directory. None: one is needed."""
    distributed: bool = False
    """True if its processes work together under torchrun; otherwise rank 0 runs it and the others wait.

    (A stage that is made of parts needs no such mark: its processes work independently.)
    """
    file: str | None = None
    """The main part: an --out with its file extension writes only this file, not a directory."""


@dataclass(frozen=True)
class Command(Generic[C]):
    """A verb that is not a stage: a `Report`, a `Pipeline` or a `Server`."""

    verb: str
    config: type[C]
    run: Callable[[C], dict[str, Any]]
    examples: str
    returned: Callable[[Mapping[str, Any]], Any] | None = field(default=None, kw_only=True)
    """Converts the result to the return value of the Python function. None, or a dry run: it is the result itself."""


@dataclass(frozen=True)
class Report(Command[C]):
    """A verb that returns its result and writes nothing."""


@dataclass(frozen=True)
class Pipeline(Command[C]):
    """A verb that runs stages below its setting `out`; `artifacts.open_root` opens that directory. `format`
    is as for a `Stage`, for pipelines that record their request.
    """

    format: int = 1


@dataclass(frozen=True)
class Server(Command[C]):
    """A verb that answers requests until it is stopped. User input is stored below its setting `out`, if it has one."""


FIRST = "For your documents"
"""The heading of the verbs that most people need; the others are the laboratory."""
VERBS: Mapping[str, Verb] = {
    "search": Verb("qontext.retrieve.ask.answers", FIRST, "Answer questions from documents or an index."),
    "adapt": Verb("qontext.adapt.run", FIRST, "Build and evaluate a retriever for your documents."),
    "serve": Verb("qontext.serve.verb", FIRST, "Serve search: a page, an HTTP API, and MCP for agents."),
    "refresh": Verb("qontext.adapt.refresh", FIRST, "Index changed documents; add and remove sources."),
    "show": Verb("qontext.workflow.show", FIRST, "Describe a directory: command, inputs, settings."),
    "demo": Verb("qontext.adapt.demo", FIRST, "Run the pipeline on text that is already on this machine."),
    "split": Verb("qontext.corpus.split", "Documents", "Split documents into passages."),
    "docset": Verb("qontext.corpus.docset", "Documents", "Build a labeled set from the documentation on this machine."),
    "collect": Verb("qontext.corpus.collect", "Documents", "Convert published files into a labeled set."),
    "train-tokenizer": Verb("qontext.corpus.train_tokenizer", "Documents", "Train a WordPiece tokenizer on passages."),
    "tokens": Verb("qontext.corpus.tokens", "Documents", "Tokenize passages into memory-mapped arrays."),
    "generate": Verb("qontext.queries.generate", "Queries", "Generate queries for every passage."),
    "train-generator": Verb("qontext.queries.train_generator", "Queries", "Train a model that generates queries."),
    "filter": Verb("qontext.queries.filter", "Queries", "Score queries and drop those that miss their passage."),
    "expand": Verb("qontext.baselines.expand", "Queries", "Append queries to passages, for BM25."),
    "holdout": Verb("qontext.evaluation.holdout", "Queries", "Hold out queries of some documents for evaluation."),
    "pretrain": Verb("qontext.pretrain.run", "Training", "Pre-train an encoder on passages and their contexts."),
    "mine": Verb("qontext.finetune.negatives.mine", "Training", "Mine hard negatives from runs and judgments."),
    "finetune": Verb("qontext.finetune.run", "Training", "Fine-tune a retriever on labeled queries."),
    "train-reranker": Verb("qontext.finetune.reranker", "Training", "Train a cross-encoder for reranking."),
    "encode": Verb("qontext.retrieve.encode", "Search", "Encode passages into vectors."),
    "index": Verb("qontext.retrieve.index.build", "Search", "Build an index of vectors, or of words (BM25)."),
    "retrieve": Verb("qontext.retrieve.search", "Search", "Search for many queries: a run of vectors, an index or BM25."),
    "fuse": Verb("qontext.retrieve.fuse", "Search", "Fuse several runs into one."),
    "rerank": Verb("qontext.retrieve.rerank", "Search", "Rerank the top of a run with a cross-encoder."),
    "export": Verb("qontext.release.export", "Sharing", "Export a model or vectors for other tools."),
    "push": Verb("qontext.release.push", "Sharing", "Push a model to the Hugging Face Hub."),
    "evaluate": Verb("qontext.evaluation.evaluate", "Evaluation", "Score a run against judgments."),
    "compare": Verb(
        "qontext.evaluation.compare", "Evaluation", "Compare systems: differences and their significance.", True
    ),
    "report": Verb("qontext.evaluation.report", "Evaluation", "Write a page with the tables and figures of experiments."),
    "run": Verb("qontext.workflow.run", "Recipes", "Run a recipe, or a sweep: all stages that are not finished."),
    "recipes": Verb("qontext.workflow.listing", "Recipes", "List the shipped recipes and sweeps, or show one."),
    "annotate": Verb("qontext.serve.judge", "Evaluation", "Collect human judgments of text pairs in a browser."),
}  # fmt: skip


def names() -> list[str]:
    """The verbs as Python identifiers."""
    return [name.replace("-", "_") for name in VERBS]


def load(verb: str) -> Stage[Any] | Command[Any]:
    """Import the verb's module and return the verb."""
    module = importlib.import_module(VERBS[choose(verb, VERBS, "verb")].module)
    for value in vars(module).values():
        if isinstance(value, Stage | Command) and value.verb == verb:
            return value
    raise AssertionError(f"{module.__name__} offers no verb {verb!r}")
