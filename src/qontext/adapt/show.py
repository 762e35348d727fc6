"""The output of `adapt`: the plan, then the verdict and the results."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qontext.adapt.config import Request
from qontext.adapt.plan import QUERIES_PER_PASSAGE, USED_SHARE, Plan
from qontext.adapt.survey import Survey
from qontext.adapt.verdict import MEASURE, Verdict
from qontext.corpus.sources.several import SCHEME, read_listing
from qontext.evaluation.ppi import LEVEL
from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.models.reference import shown_name
from qontext.retrieve.directory import STEPS
from qontext.retrieve.system import label_of
from qontext.workflow.show import show_scores, shown_labels

SAMPLES = 3


def show_plan(request: Request, source: Survey, plan: Plan, recipe: Path | None) -> None:
    """Show the plan in ten lines, then notes; `recipe` is the file to which it is written."""
    about = "" if source.exact else "about "
    passages = f"{about}{plan.passages:,}" + (" (as in the source)" if source.keep else "")
    per_document = "" if source.keep else f", {plan.passages / max(1, source.documents):.1f} per document"
    kind = request.generate["generator"]
    questions = ["real"] * ("test" in request.splits) + ["generated"] * ("generated" in request.splits)
    rows: dict[str, Any] = {
        "documents": f"{about}{source.documents:,}, {source.words_per_document:,} words each, {source.language_name}",
        "sources": _sources(request.documents),
        "passages": passages + per_document,
        "encoder": _encoder(request, plan),
        "queries": f"{kind}, {QUERIES_PER_PASSAGE} per passage"
        + (f", like those of {request.questions}" if request.questions else ""),
        "training": f"coCondenser on (passage, query) pairs: {plan.steps:,} steps of {plan.batch}"
        if plan.trains
        else "none",
        "cross-encoder": _reranker(request, plan),
        "labels": _labels(request, plan),
        "evaluation": f"{' and '.join(questions)} questions"
        + (f" written by {shown_name(request.question_model)}" if request.question_model else "")
        + f", among {plan.pool:,} passages",
        "also": ", ".join(request.also) or None,
        "time": _time(plan, request.budget),
        "recipe": None if recipe is None else str(recipe),
    }
    log.show_table("Plan", {name: row for name, row in rows.items() if row is not None})
    for note in plan.notes:
        log.warn(note[0].upper() + note[1:])


def _sources(documents: str) -> str | None:
    """The names of several sources."""
    scheme, _, file = documents.partition(":")
    return ", ".join(read_listing(Path(file))) if scheme == SCHEME else None


def _encoder(request: Request, plan: Plan) -> str:
    pooling = request.pretrain.get("vector", "cls")
    about = f"{shown_name(request.encoder)}: {pooling} pooling, up to {request.read_tokens} tokens, on {request.device}"
    about += f"; a vector for every {request.window} tokens" if request.window else ""
    return about + ("; questions are also compared token by token" if plan.tokens else "")


def _reranker(request: Request, plan: Plan) -> str | None:
    """The role of the cross-encoder: it teaches, it is the last stage, or both."""
    if not request.reranker:
        return None
    uses = [f"{plan.finetune_steps:,} steps on its scores"] if plan.finetune_steps else []
    uses += [f"it reads the best {plan.reranked} passages of a question"] if plan.reranked else []
    return f"{shown_name(request.reranker)}: {'; '.join(uses) or 'not enough time'}"


def _time(plan: Plan, budget: float) -> str:
    """The expected time against the budget."""
    more = "more than the " if plan.expected > budget else ""
    return f"about {log.duration(plan.expected)}, {more}budget {log.duration(budget)}"


def request_consent(plan: Plan, request: Request) -> None:
    """Ask whether to start what takes longer than the budget; an error where nobody can be asked."""
    if plan.expected <= request.budget:
        return
    takes = f"This takes about {log.duration(plan.expected)}, more than the budget of {log.duration(request.budget)}"
    if log.is_shown() and sys.stdin is not None and sys.stdin.isatty():
        print(f"{takes}. Start it? [y/N] ", end="", file=sys.stderr, flush=True)
        with contextlib.suppress(EOFError):
            if input().strip().lower() in ("y", "yes"):
                return
    minutes = math.ceil(plan.expected / 60 / USED_SHARE)
    raise QontextError(
        takes[0].lower() + takes[1:],
        place=request.documents,
        remedy=f"Use --budget {minutes}m, or --yes to start it all the same.",
    )


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
    _show_samples(root, verdict.asked_split)


def show_built(
    root: Path, verdict: Verdict, outcome: Mapping[str, Any], expected: float, took: float, earlier: float
) -> None:
    """Show the results, with the unusable records by kind, and in one line what was gained and what to type next. The
    command took so many seconds, after `earlier` ones."""
    rows: dict[str, Any] = {"passages": outcome["passages"]}
    if "labels" in outcome:
        rows["labels"] = shown_labels(outcome["labels"])
    rows |= {
        **_left_out(outcome),
        "expected": log.duration(expected),
        "took": log.duration(took) + (f", after {log.duration(earlier)} before" if earlier else ""),
        "encoder": shown_name(outcome["model"]),
        "report": outcome["report"],
    }
    log.show_table("Results", rows)
    log.show_line(f"{gained(verdict)} {_next(root)}")


def _next(root: Path) -> str:
    return f'Try it: qontext search {root} "a question"'


def gained(verdict: Verdict) -> str:
    """The gain of the recommended system over the best one without training and without tokens, in one sentence."""
    means = {name: values[MEASURE] for name, values in verdict.scores[verdict.split].items()}
    simple = ("bm25", "start", *(() if verdict.system == "hybrid-start" else ("hybrid-start",)))
    before = max((name for name in simple if name in means), key=lambda name: means[name])
    change, name = means[verdict.system] - means[before], label_of(verdict.system)
    name = f"{name[0].upper()}{name[1:]}"
    if verdict.system == before or change <= 0:
        than = f"{label_of(before)} ({MEASURE} {means[before]:.3f})"
        if verdict.system == before:
            return f"Nothing that was tried gains enough over {than}."
        return f"{name}, which is recommended, is not better here than {than}."
    better = f"{name} has {MEASURE} {means[verdict.system]:.3f}"
    pairs = (pair for pair in verdict.differences if pair["split"] == verdict.split)
    p = next((pair["p"] for pair in pairs if {pair["a"], pair["b"]} == {before, verdict.system}), 1.0)
    chance = "" if p < LEVEL else ", which may be chance"
    return f"{better}, {change:.3f} more than {label_of(before)}{chance}."


def show_updated(root: Path, row: Mapping[str, Any]) -> None:
    """Show what an update changed."""
    passages = f"{row['passages']:,}: {row['encoded_now']:,} encoded now, {row['reused']:,} with the vectors that they had"
    rows = {"documents": shown_changes(row["documents"]), "passages": passages, **_left_out(row)}
    log.show_table(f"Updated the index of {root}", {**rows, "took": log.duration(row["seconds_now"])})
    log.show_line(_next(root))


def shown_changes(documents: Mapping[str, int]) -> str:
    """Documents by kind of change: '1 new, 20 unchanged'."""
    return ", ".join(f"{count:,} {kind}" for kind, count in documents.items() if count)


def _left_out(outcome: Mapping[str, Any]) -> dict[str, str]:
    """The row about unusable records, by kind."""
    if "skipped" not in outcome:
        return {}
    kinds = outcome["skipped"].items()
    return {"left_out": ", ".join(f"{n:,} × {kind.replace('_', ' ')}" for kind, n in kinds)}


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
