"""`qontext adapt`: documents → an evaluated retriever, ready for search.

    survey → plan → recipe.toml → run it → verdict → model/, index/, report/, adapted.json

The same command resumes. After the documents changed, it indexes the new ones and keeps the model, unless too
many are new (`update`). See `state` for the contents of the directory.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qontext.adapt.config import AdaptConfig
from qontext.frame import artifacts, execution, files, log, workdir
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.inputs import refuse_output_within
from qontext.frame.stages import Pipeline
from qontext.retrieve.directory import (
    ADAPTED,
    MODEL,
    PLAN,
    STARTS,
    STEPS,
    index_of,
    is_adapted,
    read_adapted,
    write_adapted,
)

if TYPE_CHECKING:
    from qontext.adapt.result import Adapted
    from qontext.adapt.state import Planned
    from qontext.adapt.verdict import Verdict

FEWEST_ASKED = 10
"""Real questions without labels below which nothing can be learned from them."""
RETRAIN_ABOVE = 0.5
"""Share of new passages above which adapt trains again."""


def run(config: AdaptConfig) -> dict[str, Any]:
    try:
        return _run(config, Path(config.out))
    except OSError as error:
        files.raise_disk_error(error, Path(config.out))


def _run(config: AdaptConfig, root: Path) -> dict[str, Any]:
    from qontext.adapt import starts, state
    from qontext.adapt.sources import same_sources_if_failing, with_named_sources

    started = time.monotonic()
    files.require_no_file(root)
    refuse_output_within(root, config)
    _refuse_foreign(root)
    with contextlib.ExitStack() as stack:
        # A dry run writes nothing into a directory that holds more than a plan.
        is_preview = config.dry_run and any((root / name).exists() for name in (STEPS, ADAPTED))
        aside = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qontext-"))) if is_preview else None
        )
        if aside is None:
            stack.enter_context(state.writing(root))
        stack.enter_context(same_sources_if_failing(root))
        before = state.read_planned(root)
        config = with_named_sources(config, root, aside or root, before)
        config = state.with_recorded_settings(config, root, before)
        if config.questions is not None:
            _check_questions(config.questions)
        config = _with_documents(config, aside or root)
        config, measured = starts.settled(config, before, (aside or root) / STARTS)
        claim = _claim(config, root)
        result = None
        if before is not None and not before.is_for(claim):
            differences = artifacts.differences(before.claim, claim)
            log.note(f"{root} has a plan for another request: {differences}.")
        elif before is not None and not config.dry_run and (before.is_pending or not config.retrain):
            result = _resume(config, root, claim, before, started)
        return _plan(config, root, claim, started, aside, measured) if result is None else result


def _check_questions(file: str) -> None:
    """Refuse too few real questions."""
    from qontext.data.collection import read_asked

    if (count := len(read_asked(file))) < FEWEST_ASKED:
        raise QontextError(
            f"has too few questions: {count:,}", place=file, remedy=f"Add some: {FEWEST_ASKED} are needed."
        )


def _refuse_foreign(root: Path) -> None:
    from qontext.corpus.sources.several import FILE as SOURCES

    is_free = not root.exists() or workdir.has_only_scratch(root)
    is_begun = (root / SOURCES).is_file() and not (root / ADAPTED).exists()
    if (
        not is_free
        and not is_begun
        and not any((root / name).exists() for name in (PLAN, "documents", STARTS))
    ):
        raise QontextError(
            "is not empty and was not written by adapt", place=root, remedy="Choose another --out."
        )


def _resume(
    config: AdaptConfig, root: Path, claim: dict[str, Any], before: Planned, started: float
) -> dict[str, Any] | None:
    """The same request again: resume its plan, or follow the documents; None if it takes another plan."""
    from qontext.adapt import show, state

    documents = claim["inputs"]["documents"]["digest"]
    is_finished = is_adapted(root) and not before.is_pending
    split = root / STEPS / "split"
    # The index may be of other documents than the model: these were indexed since it was trained.
    is_of_these = before.documents == documents and (
        not artifacts.is_artifact(split)
        or artifacts.open_artifact(split).inputs["source"]["digest"] == documents
    )
    if is_finished and not (is_of_these and (root / STEPS).exists()):
        return _update(config, root, claim, before, started)
    if not is_finished and before.documents != documents:
        return None
    if not (root / STEPS).exists() and not config.yes:
        show.request_consent(before.plan, before.request)
    return _carry_out(config, root, state.renamed(before, claim, _names(config), Workdir(root)), started)


def _update(
    config: AdaptConfig, root: Path, claim: dict[str, Any], before: Planned, started: float
) -> dict[str, Any] | None:
    """Index the documents with the existing model; None if so many passages are new that it has to be trained again."""
    if config.judge is not None:
        raise QontextError(
            "judgments are of what was measured with the model, and the documents changed since then",
            place=root,
            remedy="Remove --judge, or measure again with --retrain.",
        )
    from qontext.adapt import follow, publish, vector_index
    from qontext.adapt.show import show_updated
    from qontext.adapt.verdict import Verdict

    work, request = Workdir(root), replace(before.request, documents=config.documents)
    about = read_adapted(root)
    verdict = Verdict(**about["verdict"])
    about = publish.published_again(about, config, work, publish.model_card(request, verdict, root))
    model = publish.place_of(about, root, MODEL, config.start)
    row = follow.reindex(root, request, about, model, vector_index.Choice.of(config), config.on)
    about["index"] = index_of(root).name
    if row["changed"]:
        about["searching"] = vector_index.measure(
            root, index_of(root), model, verdict.asked_split, request.read_tokens, request.device
        )
        write_adapted(root, about)
    for sentence in about["searching"].get("sentences", ()):
        log.note(sentence)
    share = follow.new_share(root)
    if share is not None and share > RETRAIN_ABOVE:
        then = "training again" if before.plan.trains else "making a new plan"
        log.note(f"{share:.0%} of the passages are new since then: {then}.")
        return None
    if share is not None and share > follow.MENTION_ABOVE and before.plan.trains:
        log.note(
            f"{share:.0%} of the passages are new since the model was trained: --retrain trains on them, too."
        )
    replace(before, claim=claim).write(work)
    row = {
        **{"encoded_now": 0, "reused": row["passages"]},
        **row,
        "seconds_now": round(time.monotonic() - started, 1),
    }
    show_updated(root, row)
    new_share = None if share is None else round(share, 4)
    return {"out": str(root), "updated": True, "new_share": new_share, **about, "model": model, **row}


def _plan(
    config: AdaptConfig,
    root: Path,
    claim: dict[str, Any],
    started: float,
    aside: Path | None,
    starts: Mapping[str, float] | None,
) -> dict[str, Any]:
    """Survey, measure rates, plan; then run, unless it is a dry run. A plan with `aside` is only shown."""
    from qontext.adapt import rates, state
    from qontext.adapt.plan import make_plan
    from qontext.adapt.prepare import prepare
    from qontext.adapt.show import request_consent, show_plan

    request, survey, notes = prepare(config)
    if survey.documents < 1:
        raise QontextError("contains no documents", place=config.documents)
    log.note("Measuring the speed of this machine: less than half a minute, unless it is very busy …")
    measured = rates.measure(survey.sample, request, aside or root)
    plan = make_plan(request, survey, measured)
    plan = replace(plan, notes=[*notes, *plan.notes])
    request = request if plan.finetune_steps else request.without_training_on_labels()
    log.note(
        f"Measured in {log.duration(measured.seconds)}: it encodes {measured.encoded:,.1f} passages/s and trains on "
        f"{measured.trained:,.1f} passages/s."
    )
    show_plan(request, survey, plan, None if aside else root / state.RECIPE)
    result = {"out": str(root), **asdict(plan), "expected_seconds": round(plan.expected, 1)}
    if aside:
        log.note(f"{root} contains a result or an unfinished run, which is kept: the plan is only shown.")
        return result
    if not config.dry_run and not config.yes:
        request_consent(plan, request)
    planned = state.Planned(claim, request, plan, starts, is_pending=is_adapted(root))
    planned.write_new(artifacts.open_root(root))
    shutil.rmtree(root / STARTS, ignore_errors=True)
    if config.dry_run:
        return {**result, "recipe": str(root / state.RECIPE)}
    return _carry_out(config, root, planned, started)


def _carry_out(config: AdaptConfig, root: Path, planned: Any, started: float) -> dict[str, Any]:
    """Run the remaining steps of the recipe, evaluate, write the result."""
    from qontext.adapt import publish, show, state, vector_index
    from qontext.adapt.judgments import annotate
    from qontext.cluster.torchrun import run_steps, shared_by
    from qontext.retrieve.system import System
    from qontext.workflow.recipe import read_recipe
    from qontext.workflow.run import run_recipe

    request, plan = planned.request, planned.plan
    recipe = read_recipe(str(root / state.RECIPE))
    steps, work = root / STEPS, Workdir(root)
    earlier = _done_seconds(recipe, steps)
    processes = shared_by(config.processes or plan.processes, recipe)
    run_steps(root / state.RECIPE, steps, processes, config.on)
    run_recipe(recipe, steps, on=config.on)
    verdict = _judge(root, planned)
    is_adapted = verdict.encoder == "adapted"
    source = _trained(steps, plan) if is_adapted else request.encoder
    card = publish.model_card(request, verdict, root)
    entries = publish.publish_copy(source, work, MODEL, card, copied=is_adapted or config.copy_model)
    model = source if "reference" in entries else publish.place_of(entries, root, MODEL, None)
    reuse = {"vectors": str(steps / f"{verdict.encoder}-vectors")}
    choice, tokens = vector_index.Choice.of(config), System.parse(verdict.system).tokens
    index, index_rows = publish.make_index(request, model, root, reuse, choice, config.on, tokens=tokens)
    searching = read_adapted(root).get("searching", {}) if (root / ADAPTED).is_file() else {}
    if index_rows or not searching:
        searching = vector_index.measure(
            root, index, model, verdict.asked_split, request.read_tokens, request.device
        )
    labels = artifacts.open_artifact(steps / "holdout").summary.get("labeled_queries")
    about: dict[str, Any] = {
        "system": verdict.system,
        "encoder": verdict.encoder,
        **publish.weights(steps, verdict),
        "read_tokens": request.read_tokens,
        "index": index.name,
        **entries,
        **publish.last_stage(request.reranker, plan.reranked, steps, verdict, work, copied=config.copy_model),
        **({"labels": labels} if labels else {}),
        **({"starts": dict(planned.starts)} if planned.starts else {}),
        "verdict": verdict.as_json(),
        "searching": searching,
        "expected_seconds": round(plan.expected, 1),
    }
    about["seconds"] = round(earlier + time.monotonic() - started, 1)
    write_adapted(root, about)
    planned = planned.carried_out(work)
    opening = [*verdict.sentences, *searching.get("sentences", ())]
    report = _report(root, recipe.title, verdict.system, opening, plan)
    split = artifacts.open_artifact(index / "passages").summary
    left_out = {name: split[name] for name in ("skipped", "not_read") if name in split}
    show.show_verdict(verdict, searching, root)
    outcome = {"passages": split["passages"], **left_out, "model": model, "report": report}
    took = time.monotonic() - started
    show.show_built(root, verdict, {**about, **outcome}, about["expected_seconds"], took, earlier)
    if config.judge is not None:
        annotate(root, questions=config.judge, port=0)
        return _carry_out(config.model_copy(update={"judge": None}), root, planned, time.monotonic())
    return {"out": str(root), **about, **outcome, "seconds_now": round(took, 1)}


def _judge(root: Path, planned: Any) -> Verdict:
    """The verdict on what was measured, with the judgments that there are now."""
    from qontext.adapt import recipes
    from qontext.adapt.judgments import take_judgments
    from qontext.adapt.verdict import judge
    from qontext.evaluation.holdout import ASKED

    request, plan = planned.request, planned.plan
    take_judgments(root)
    splits = [split for split in request.splits if split != "dev"]
    people = ASKED if request.questions else None
    return judge(root / STEPS, splits, recipes.systems(plan), list(request.also), people)


def _report(root: Path, title: str, system: str, opening: list[str], plan: Any) -> str:
    """Write the report; returns its page."""
    from qontext import api
    from qontext.adapt.recipes import systems
    from qontext.retrieve.system import SYSTEMS, label_of

    steps = root / STEPS
    api.report(
        (str(steps),),
        title=title,
        data=str(steps / "holdout" / "measured"),
        label=[f"{one.name}={one.label}" for one in SYSTEMS if one.name in systems(plan)],
        opening=opening,
        recommended=label_of(system),
        out=root / "report",
        overwrite=True,
    )
    return str(root / "report" / "report.html")


def _trained(steps: Path, plan: Any) -> str:
    """The encoder that the recipe trained."""
    return str(steps / ("finetune" if plan.finetune_steps else "pretrain"))


def _done_seconds(recipe: Any, steps: Path) -> float:
    """The seconds that the finished steps took."""
    from qontext.workflow.run import plan

    done = [step.name for step, state, _ in plan(recipe, steps) if state == "done"]
    return sum(float(artifacts.open_artifact(steps / name).meta["made"]["seconds"]) for name in done)


def _claim(config: AdaptConfig, root: Path) -> dict[str, Any]:
    claim = execution.claim_of(ADAPT, config, root)
    inputs = {("encoder" if name == "encoder[0]" else name): entry for name, entry in claim["inputs"].items()}
    claim = {**claim, "inputs": inputs}
    return {**claim, "key": artifacts.key_of(claim)}


def _with_documents(config: AdaptConfig, under: Path) -> AdaptConfig:
    """Docstring summaries are real questions: they are removed from their passages, and used for evaluation. The result
    is written `under` a folder."""
    from qontext import api
    from qontext.adapt.config import parse_budget
    from qontext.adapt.sources import with_all_sources
    from qontext.corpus.docset import is_documentation

    if not is_documentation(config.documents):
        return with_all_sources(config)
    if config.read_as:
        raise QontextError("has no files", place=config.documents, remedy="Remove --read-as.")
    documents = under / "documents"
    if not (config.dry_run and artifacts.is_artifact(documents)):  # otherwise it may be in use
        passages = config.passages or max(1_000, min(30_000, int(parse_budget(config.budget) * 5)))
        api.docset(config.documents, passages=passages, queries=500, out=documents, overwrite=True)
    return config.model_copy(update={"documents": str(documents), "labels": config.labels or str(documents)})


def returned(summary: Mapping[str, Any]) -> Adapted:
    """The searcher of the finished directory."""
    from qontext.adapt.result import Adapted

    return Adapted(summary["out"], summary=summary)


def _names(config: AdaptConfig) -> dict[str, str | None]:
    """The inputs with their current names."""
    return {**{name: getattr(config, name) for name in type(config).inputs()}, "encoder": config.start}


ADAPT = Pipeline(
    verb="adapt",
    config=AdaptConfig,
    run=run,
    returned=returned,
    examples="""
        qontext adapt docs.jsonl --out runs/mine
        qontext adapt docs.jsonl --labels labels.jsonl --budget 2h --out runs/labeled
        qontext adapt docs.jsonl --index faiss-hnsw --out runs/mine
        qontext adapt docs.jsonl --copy-model --out runs/mine
        qontext adapt docs.jsonl --also mine="python3 my_search.py" --out runs/compared
        qontext adapt docs.jsonl --questions questions.txt --judge 30 --out runs/mine
        qontext adapt --source notes=handbook --source docs=docs.jsonl --dry-run --out runs/both
        qontext adapt pydocs: --budget 10m --dry-run
    """,
)
