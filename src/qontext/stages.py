"""The verbs: one table, from which the command line, recipes and Python calls are all made.

A *stage* is a verb that writes a directory: a configuration class and a function
``run(config, workdir) -> summary``. The table names each verb's module and its help line, so that listing
the verbs imports none of them. A module offers `STAGE` (writes a directory) or `COMMAND` (does not).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from qontext import artifacts, locks, log
from qontext.artifacts import Artifact, Workdir
from qontext.errors import QontextError, choose
from qontext.fingerprint import fingerprint

if TYPE_CHECKING:  # listing the verbs does without pydantic
    from qontext.config import StageConfig

C = TypeVar("C", bound="StageConfig")


@dataclass(frozen=True)
class Verb:
    """One line of `qontext --help`: where the code is, under which heading it stands, what it does."""

    module: str
    panel: str
    help: str


@dataclass(frozen=True)
class Stage(Generic[C]):
    """A verb that turns inputs into a directory.

    A stage whose summary says all (`needs_out` False) may be called without an output directory: it then
    works in a temporary one, which is gone afterwards.

    `format` is raised when the same settings would write something else than before, so that results of
    older versions are not taken for current ones.
    """

    verb: str
    config: type[C]
    run: Callable[[C, Workdir], dict[str, Any] | None]
    examples: str
    format: int = 1
    needs_out: bool = True
    without_out: str | None = None
    """Where `needs_out` is False: the setting that must be given if no directory is."""
    distributed: bool = False
    """Whether its processes work together under torchrun; else rank 0 does it and the others wait.

    (A stage with a `shard` setting needs no such mark: its ranks work independently.)
    """
    file: str | None = None
    """The part that stands for the whole: an --out with its ending writes this one file, not a directory."""


@dataclass(frozen=True)
class Command(Generic[C]):
    """A verb that reads and reports, but writes no directory of its own."""

    verb: str
    config: type[C]
    run: Callable[[C], dict[str, Any]]
    examples: str


VERBS: Mapping[str, Verb] = {
    "split": Verb("qontext.corpus.split", "Documents", "Split documents into passages."),
    "docset": Verb("qontext.corpus.docset", "Documents", "Make a labelled set from the documentation on this machine."),
    "train-tokenizer": Verb("qontext.corpus.train_tokenizer", "Documents", "Train a WordPiece tokenizer on passages."),
    "tokens": Verb("qontext.corpus.tokens", "Documents", "Tokenise passages once, into memory-mapped arrays."),
    "generate": Verb("qontext.queries.generate", "Queries", "Generate queries for every passage."),
    "train-generator": Verb("qontext.queries.train_generator", "Queries", "Train a model that generates queries."),
    "filter": Verb("qontext.queries.filter", "Queries", "Score queries and leave out those that miss their passage."),
    "relevance": Verb("qontext.queries.relevance", "Queries", "Measure how often queries belong to their passage."),
    "expand": Verb("qontext.queries.expand", "Queries", "Append queries to passages, for BM25."),
    "holdout": Verb("qontext.adapt.holdout", "Queries", "Set some documents' queries aside, to measure with."),
    "pretrain": Verb("qontext.pretrain.run", "Training", "Pre-train an encoder on passages and their contexts."),
    "mine": Verb("qontext.retrieve.mine", "Training", "Mine hard negatives: runs and judgements to training groups."),
    "finetune": Verb("qontext.finetune.run", "Training", "Fine-tune a retriever on labelled queries."),
    "train-reranker": Verb("qontext.finetune.reranker", "Training", "Train a cross-encoder that reranks."),
    "encode": Verb("qontext.retrieve.encode", "Search", "Encode passages into vectors."),
    "index": Verb("qontext.retrieve.index.build", "Search", "Build an index: HNSW, IVF-PQ, Milvus or BM25."),
    "search": Verb("qontext.retrieve.search", "Search", "Search vectors, an index or, by words, passages."),
    "fuse": Verb("qontext.retrieve.fuse", "Search", "Fuse several runs into one."),
    "rerank": Verb("qontext.retrieve.rerank", "Search", "Score the top of a run anew with a cross-encoder."),
    "evaluate": Verb("qontext.evaluate.evaluate", "Evaluation", "Score a run against judgements."),
    "compare": Verb("qontext.evaluate.compare", "Evaluation", "Compare systems: differences and their significance."),
    "beir": Verb("qontext.evaluate.beir", "Evaluation", "Measure a retriever on BEIR's sets."),
    "sweep": Verb("qontext.evaluate.sweep", "Evaluation", "Run a recipe over a grid of settings."),
    "report": Verb("qontext.evaluate.report", "Evaluation", "Make a page, tables and figures of what was run."),
    "adapt": Verb("qontext.adapt.run", "Whole pipelines", "Make a measured, searchable retriever of documents."),
    "run": Verb("qontext.workflow.recipe", "Whole pipelines", "Run a recipe: every stage that is not done yet."),
    "recipes": Verb("qontext.workflow.recipe", "Whole pipelines", "List the recipes that come with the package."),
    "demo": Verb("qontext.workflow.demo", "Whole pipelines", "Run the pipeline on text that is already on this machine."),
    "show": Verb("qontext.workflow.show", "Whole pipelines", "Explain a directory: what made it, from what, how."),
}  # fmt: skip


def names() -> list[str]:
    """The verbs as Python names."""
    return [name.replace("-", "_") for name in VERBS]


def load(verb: str) -> Stage[Any] | Command[Any]:
    """Import the verb's module and return its stage or command."""
    module = importlib.import_module(VERBS[choose(verb, VERBS, "verb")].module)
    for found in vars(module).values():
        if isinstance(found, Stage | Command) and found.verb == verb:
            return found
    raise AssertionError(f"{module.__name__} offers no verb {verb!r}")


def function(name: str) -> Callable[..., Any]:
    """The verb as a Python function: `split(source, out=..., max_tokens=128)`."""
    verb = name.replace("_", "-")
    loaded = load(verb)
    arguments = [field for field, mark in loaded.config.inputs().items() if mark.positional]

    def call(*values: Any, **settings: Any) -> Any:
        if len(values) > len(arguments):
            raise QontextError(f"{verb} takes {len(arguments)} positional arguments, got {len(values)}")
        settings = {**dict(zip(arguments, map(_text, values))), **{k: _text(v) for k, v in settings.items()}}
        if isinstance(loaded, Command):
            return loaded.run(loaded.config.make(settings, where=verb))
        if "out" not in settings and loaded.needs_out:
            raise QontextError(f"{verb} needs out=, the directory to write")
        out, overwrite = settings.pop("out", None), bool(settings.pop("overwrite", False))
        config = loaded.config.make(settings, where=verb)
        return execute(loaded, config, None if out is None else Path(out), overwrite=overwrite)

    call.__name__ = name
    call.__doc__ = VERBS[verb].help
    return call


def claim_of(stage: Stage[Any], settings: StageConfig) -> dict[str, Any]:
    """What the stage is about to make: verb, settings and the inputs' fingerprints."""
    inputs = {}
    for field, mark in type(settings).inputs().items():
        value = getattr(settings, field)
        for i, item in enumerate(value if isinstance(value, tuple) else [value]):
            if item is not None:
                name = f"{field}[{i}]" if isinstance(value, tuple) else field
                inputs[name] = {
                    "path": str(item),
                    "digest": digest_of(str(item), name) if mark.by_content else f"text:{item}",
                }
    claim: dict[str, Any] = {
        "verb": stage.verb,
        "format": stage.format,
        "config": settings.identity(),
        "inputs": inputs,
    }
    return {**claim, "key": artifacts.key_of(claim)}


def execute(stage: Stage[C], settings: C, out: Path | None, *, overwrite: bool = False) -> Artifact:
    """Make the directory `out`, unless it is there already.

    The same settings and inputs: nothing is done again; interrupted: resumed. Anything else that stands in
    `out` is refused with what differs, or made anew with `overwrite`.

    A stage whose configuration has a `shard` field is worked on by several processes: each makes its share
    of the parts, and `run` returns None while parts of others are missing. Whoever finds them all there
    describes the directory.
    """
    if out is None:
        assert not stage.needs_out, stage.verb
        if stage.without_out and getattr(settings, stage.without_out) is None:
            raise QontextError(f"{stage.verb} needs --out, the directory to write")
        with tempfile.TemporaryDirectory(prefix="qontext-") as scratch:
            return execute(stage, settings, Path(scratch))
    if stage.file and out.suffix == Path(stage.file).suffix and not out.is_dir():
        return _execute_file(stage, settings, out, stage.file, overwrite=overwrite)
    claim = claim_of(stage, settings)
    rank, sharded = int(os.environ.get("RANK", "0")), "shard" in type(settings).model_fields
    if rank != 0 and not sharded:
        return _follow(stage, settings, out, claim)
    shard: str | None = getattr(settings, "shard", None)
    index, count = share(shard) if sharded else (0, 1)
    with contextlib.ExitStack() as held:
        # One process at a time looks and claims; then each holds a lock of its own while it works.
        with locks.lock(out, "-claim", wait=True):
            found, made = artifacts.state(out, claim["key"])
            if found == "done" and made is not None and overwrite and made.missing():
                found = "stale"
            if found == "done":
                assert made is not None
                made.parts()  # says so if one is gone
                log.note(f"{out} is already there, made by the same command: nothing to do.")
                return made
            if found == "foreign":
                raise QontextError(
                    "the output directory is not empty and was not made by qontext",
                    place=out,
                    remedy="Choose another --out.",
                )
            if found == "stale":
                assert made is not None
                if not overwrite:
                    differs = artifacts.differences(made.meta, claim)
                    raise QontextError(
                        f"the output directory holds another result: {differs}",
                        place=out,
                        remedy="Choose another --out, or make it anew with --overwrite.",
                    )
                locks.refuse_if_written(out)
                artifacts.clear(out)
            writer = f"{index}-of-{count}" if count > 1 else "0"
            held.enter_context(locks.lock(out, f"-{writer}"))
            if found == "interrupted" and rank == 0:
                log.note(f"{'Resuming' if count == 1 else 'Joining'} {out}.")
            work = artifacts.begin(out, {**claim, "launch": _launch()}, writer)
        started = time.monotonic()
        try:
            summary = stage.run(settings, work)
        except QontextError:
            if count == 1:
                artifacts.abandon(work)
            raise
        if summary is None:  # other shards are still at work
            if count > 1 and not shard:
                return _await(out, claim)
            return Artifact(out, {**claim, "digest": "", "summary": {}, "parts": {}})
        with locks.lock(out, "-claim", wait=True):
            if artifacts.state(out, claim["key"])[0] == "done":  # two shards found all parts at once
                return artifacts.open_artifact(out)
            return artifacts.finish(work, claim, summary, time.monotonic() - started)


def share(shard: str | None) -> tuple[int, int]:
    """(index, count): which share of a sharded stage's parts this process makes.

    `shard` says it for independent machines (``0/4``); under torchrun, each machine's share is divided
    among its ranks.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shard or "0/1")
    if not match or int(match[1]) >= int(match[2]):
        raise QontextError(
            f"the shard {shard!r} is not of the form i/n with i from 0 to n-1", remedy="Example: 0/4"
        )
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    return int(match[1]) * world + rank, int(match[2]) * world


def _execute_file(stage: Stage[C], settings: C, out: Path, part: str, *, overwrite: bool) -> Artifact:
    """Make one file: its directory is made beside it under a hidden name, and one part is taken out."""
    if out.exists() and not overwrite:
        raise QontextError(
            "the file is there already",
            place=out,
            remedy="Choose another --out, or replace it with --overwrite.",
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise QontextError(
            "several processes write a directory, not a file",
            place=out,
            remedy=f"Give --out {out.with_suffix('')}.",
        )
    hidden = out.with_name(f".{out.name}.making")
    made = execute(stage, settings, hidden, overwrite=True)
    (hidden / part).replace(out)
    artifacts.clear(hidden)
    shutil.rmtree(hidden)
    return Artifact(out, made.meta)


def _follow(stage: Stage[C], settings: C, out: Path, claim: dict[str, Any]) -> Artifact:
    """What a rank other than 0 does: join the work once rank 0 has claimed the directory, then wait for its end."""
    while artifacts.state(out, claim["key"])[0] != "done":
        if stage.distributed and artifacts.claimed_by(out) == _launch():
            stage.run(settings, Workdir(out, os.environ["RANK"]))
            break
        time.sleep(0.2)
    return _await(out, claim)


def _await(out: Path, claim: dict[str, Any]) -> Artifact:
    """The finished artifact, once another rank has described it."""
    while artifacts.state(out, claim["key"])[0] != "done":
        time.sleep(0.2)
    return artifacts.open_artifact(out)


def _launch() -> str:
    """One start of a group of processes, so that its ranks do not take an earlier start's claim for their own."""
    parts = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    return "/".join(os.environ.get(name, "") for name in parts)


def digest_of(value: str, field: str) -> str:
    """The fingerprint of an input: of the file or folder if it is one, else of what the name stands for."""
    if value.startswith("pydocs:"):
        from qontext.corpus import pydocs

        return pydocs.fingerprint(value)
    from qontext.config import existing

    path = Path(value).expanduser()
    if not value or "\0" in value:
        raise QontextError(
            f"{field} is an empty name" if not value else f"{field} is not a name that can be read"
        )
    try:
        is_there = path.exists()
    except OSError as error:
        raise QontextError(f"{field} is not a name that can be read: {error.strerror}") from None
    if is_there:
        return fingerprint(path)
    if _is_path(value):
        existing(path, field)
    return f"name:{value}"


def _is_path(value: str) -> bool:
    """Whether a name that does not exist on disk was meant as a path rather than a hub name or a URI."""
    scheme, colon, _ = value.partition(":")
    if colon and scheme.isidentifier():
        return False
    return value.startswith((".", "/", "~")) or value.count("/") > 1 or Path(value).suffix != ""


def _text(value: Any) -> Any:
    """Paths and artifacts stand for their path, so that Python calls can pass either."""
    if isinstance(value, Artifact):
        return str(value.path)
    return str(value) if isinstance(value, Path) else value
