"""The output of `adapt`: the plan, then the verdict and the results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qontext.adapt.plan import QUERIES_PER_PASSAGE, Plan
from qontext.adapt.request import Request
from qontext.adapt.state import RECIPE, STEPS
from qontext.adapt.survey import Survey
from qontext.adapt.verdict import Verdict
from qontext.corpus.sources.files import unread
from qontext.frame import log
from qontext.workflow.adapted import show_scores, shown_labels

SAMPLES = 3


def show_plan(request: Request, source: Survey, plan: Plan, recipe: Path | None) -> None:
    """Show the plan in ten lines, then notes; `recipe` is the file to which it is written."""
    about = "" if source.exact else "about "
    passages = f"{about}{plan.passages:,}" + (" (as in the source)" if source.keep else "")
    per_document = "" if source.keep else f", {plan.passages / max(1, source.documents):.1f} per document"
    kind = request.generate["generator"]
    vectors = request.pretrain.get("vector", "cls")
    read = f"{request.read_tokens} tokens" + (f", in windows of {request.window}" if request.window else "")
    read += ", also one by one" if plan.tokens else ""
    rows: dict[str, Any] = {
        "documents": f"{about}{source.documents:,}, {source.words_per_document:,} words each, {source.language_name}",
        "passages": passages + per_document,
        "encoder": f"{request.encoder} ({vectors} pooling, up to {read}, on {request.device})",
        "queries": f"{kind}, {QUERIES_PER_PASSAGE} per passage",
        "training": f"coCondenser on (passage, query) pairs: {plan.steps:,} steps of {plan.batch}"
        if plan.trains
        else "none",
        "teacher": f"{request.reranker}"
        + (f": {plan.finetune_steps:,} steps on its scores" if plan.finetune_steps else ": not enough time")
        if request.reranker
        else None,
        "labels": _labels(request, plan),
        "measuring": f"{', '.join(s for s in request.splits if s != 'dev')} questions"
        + (f" written by {request.question_model}" if request.question_model else "")
        + f", among {plan.pool:,} passages",
        "time": f"{log.duration(plan.expected)}, "
        + (
            f"budget {log.duration(request.budget)}: "
            if plan.expected <= request.budget
            else f"more than the budget of {log.duration(request.budget)}, because this much is necessary: "
        )
        + ", ".join(f"{part.replace('_', ' ')} {log.duration(took)}" for part, took in plan.seconds.items()),
        "disk": f"{plan.disk / 2**30:.1f} GiB",
        "recipe": None if recipe is None else str(recipe),
    }
    log.show_table("Plan", {name: row for name, row in rows.items() if row is not None})
    for note in plan.notes:
        log.warn(note[0].upper() + note[1:])


def _labels(request: Request, plan: Plan) -> str:
    if not request.labels:
        return "none: evaluated on generated questions"
    if not (plan.finetune_steps and request.labeled):
        return f"{request.judged.get('test', 0):,} questions, for evaluation only"
    judged = {**request.judged, "train": request.labeled}
    return f"{plan.finetune_steps:,} steps of fine-tuning; {shown_labels(judged)}"


def show_verdict(verdict: Verdict, searching: Mapping[str, Any], root: Path) -> None:
    recommendation, *reasons = verdict.sentences
    log.show_line(recommendation)
    for sentence in (*reasons, *searching.get("sentences", ())):
        log.note(sentence)
    show_scores(verdict.as_json())
    _show_samples(root, verdict.split)


def show_built(root: Path, outcome: Mapping[str, Any], expected: float, seconds: float) -> None:
    """Show the results, with the unusable records and files by kind."""
    rows: dict[str, Any] = {"passages": outcome["passages"]}
    if "labels" in outcome:
        rows["labels"] = shown_labels(outcome["labels"])
    if "skipped" in outcome:
        rows["left_out"] = ", ".join(
            f"{n:,} × {kind.replace('_', ' ')}" for kind, n in outcome["skipped"].items()
        )
    if "not_read" in outcome:
        rows["not_read"] = unread(outcome["not_read"])
    rows |= {
        "expected": log.duration(expected),
        "took": log.duration(seconds),
        "model": outcome["model"],
        "report": outcome["report"],
    }
    log.show_table("Results", rows)
    log.note(
        "\nNext steps:\n"
        f'  Search:                      qontext search {root} "a question"\n'
        "  After documents changed:     run the same command again; it updates the index.\n"
        f"  Edit and rerun the steps:    qontext run {root / RECIPE} --out {root / STEPS} --dry-run"
    )


def _show_samples(root: Path, split: str) -> None:
    """Show the answers to three evaluation questions."""
    from qontext.data.collection import load_collection
    from qontext.retrieve.searcher import Searcher

    queries = list(load_collection(root / STEPS / "holdout" / "measured").queries(split).values())
    searcher = Searcher(root)
    rows = []
    for question in queries[:: max(1, len(queries) // SAMPLES)][:SAMPLES]:
        best = next(iter(searcher.search(question, k=1)), None)
        text = (
            "nothing found"
            if best is None
            else f"{best.title or best.document}: {' '.join(best.text.split())[:160]}"
        )
        rows.append({"question": question, "best_passage": text})
    log.show_rows("Sample questions", rows)
