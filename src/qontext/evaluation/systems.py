"""`qontext evaluate --system`: how good a search is that somebody has, on their documents, without adapting anything.

    documents → passages → questions → a run of each system, and of BM25 → scores, p values → one page

The questions are generated from the passages, one for each, or come from labels. The steps are stages in a hidden folder
of the directory, so that a killed evaluation asks no question twice; the folder is removed at the end.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from qontext.corpus.language import language_of_source, natural
from qontext.evaluation.comparison import format_p
from qontext.frame import log, trust
from qontext.frame.artifacts import DERIVED, LOGS, Artifact, Workdir
from qontext.frame.errors import choose
from qontext.frame.execution import function
from qontext.retrieve import outside
from qontext.retrieve.analyzer import LANGUAGES

GENERATED = "generated"
"""The split of generated questions, as `holdout` writes it."""
STEPS = ".steps"
"""Hidden, since the steps are no part of the result."""
BASELINE = "BM25"
DEPTH = 10
"""Results that are judged: what people look at, and what every system returns."""
MEASURES = f"nDCG@{DEPTH} MRR@{DEPTH} R@{DEPTH}"
OF_GENERATED = (
    "The questions were generated from the passages, so they share words with them, which favors BM25. Labeled questions "
    "of your own, as second argument, say more."
)


class SystemSettings(NamedTuple):
    """The documents, systems as NAME=SYSTEM, and the questions: a split of labels, or so many that a model generates."""

    documents: str
    systems: tuple[str, ...]
    labels: str | None
    split: str
    questions: int
    question_model: str | None


def evaluate_systems(settings: SystemSettings, work: Workdir) -> dict[str, Any]:
    """Write the page, the runs and the labeled set; returns the summary."""
    systems = outside.all_named(settings.systems)
    trust.require(demand for one in systems.values() for demand in outside.demands({"system": one}))
    outside.remember(settings.systems)
    for system in systems.values():
        outside.probe(system, "how does it work?")
    work.write_json(f"{LOGS}systems.json", sorted(systems))  # from now on, an error leaves what was done
    steps = work.path / STEPS
    split, language = _split(settings), language_of_source(settings.documents)
    measured = _questions(settings, steps, split, natural(language)) / "measured"
    asking = {"data": measured, "split": split, "k": DEPTH}
    baseline = {"bm25": True, "analyzer": LANGUAGES.get(language)}
    searches = {name: {"system": system} for name, system in systems.items()} | {BASELINE: baseline}
    runs = {
        name: _step(steps, "search", f"runs/{name}", **searched, **asking)
        for name, searched in searches.items()
    }
    asked = {"qrels": measured, "split": split, "measures": MEASURES}
    scores = {  # by number: the report takes parts of a name for a seed
        name: _step(steps, "evaluate", f"scores/{number}", run=run.path, **asked)
        for number, (name, run) in enumerate(runs.items())
    }
    with log.warnings_only():
        pairs = function("compare")(
            {n: run.path for n, run in runs.items()}, measured, MEASURES, split=split, examples=0
        )
    summary = _summary(scores, runs, pairs)
    opening = [*_sentences(summary), *([OF_GENERATED] if settings.labels is None else [])]
    page = _page(steps, scores, measured, opening, settings.documents)
    for name, run in runs.items():
        with work.write(f"runs/{name}.trec") as path:
            shutil.copyfile(run.part("run.trec"), path)
    with work.write_folder("measured") as folder:
        shutil.copytree(measured, folder, dirs_exist_ok=True)
    work.write_json("scores.json", summary)
    with work.write_folder(DERIVED.rstrip("/")) as folder:
        shutil.copytree(
            page.path, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("meta.json", ".*")
        )
    work.remove(STEPS)
    _show(summary, opening)
    return {**summary, "page": str(work.path / DERIVED / "report.html")}


def show_systems(settings: SystemSettings) -> dict[str, Any]:
    """Only show the scores."""
    with TemporaryDirectory(prefix="qontext-") as folder:
        summary = evaluate_systems(settings, Workdir(Path(folder)))
    log.note("With --out, there is also a page with examples.")
    return {name: value for name, value in summary.items() if name != "page"}


def _split(settings: SystemSettings) -> str:
    """The split of `holdout` with the questions."""
    from qontext.data.labels import read_labels, tested

    if settings.labels is None:
        return GENERATED
    labels = read_labels(settings.labels)
    if settings.split not in ("test", *labels.splits) and (Path(settings.labels) / "qrels").is_dir():
        choose(settings.split, sorted(labels.splits), f"split of {settings.labels}")
    if not labels.are_split:
        return "test"
    splits = [name for name, qrels in labels.splits.items() if qrels]
    return "test" if settings.split == tested(splits) else settings.split


def _questions(settings: SystemSettings, steps: Path, split: str, language: str) -> Path:
    """The folder of `holdout` with passages, questions and judgments."""
    passages = _step(steps, "split", source=settings.documents, language=language, on_error="skip")
    if skipped := {kind: n for kind, n in passages.summary.get("skipped", {}).items() if n}:
        kinds = ", ".join(f"{n:,} × {kind.replace('_', ' ')}" for kind, n in skipped.items())
        log.warn(f"documents are skipped: {kinds}.")
    asked: dict[str, Any] = {"passages": passages.path, "share": 0.99, "questions": settings.questions}
    if settings.labels is not None:
        asked |= {"labels": settings.labels, "split_labels": False}
    else:
        queries = _step(steps, "generate", passages=passages.path, generator="keyphrase")
        asked |= {"queries": queries.path, "question_model": settings.question_model}
    return _step(steps, "holdout", **asked).path


def _step(steps: Path, verb: str, name: str = "", **settings: Any) -> Artifact:
    """A finished stage."""
    out = steps / (name or verb)
    given = {key: value for key, value in settings.items() if value is not None}
    with log.without_repeats():
        artifact: Artifact = function(verb)(**given, out=out, overwrite=True)
    return artifact


def _page(
    steps: Path, scores: dict[str, Artifact], measured: Path, opening: list[str], documents: str
) -> Artifact:
    return _step(
        steps,
        "report",
        runs=[str(score.path) for score in scores.values()],
        label=[f"{number}={name}" for number, name in enumerate(scores)],
        title=f"Search in {Path(documents).name or documents}",
        data=measured,
        opening=opening,
    )


def _summary(scores: dict[str, Artifact], runs: dict[str, Artifact], pairs: Any) -> dict[str, Any]:
    """Means, p values and speeds by system."""
    result: dict[str, Any] = pairs.as_json()
    return {
        "questions": int(result["queries"]),
        "measures": {
            name: score.summary.take("measures", dict[str, float]) for name, score in scores.items()
        },
        "unmatched_results": {
            name: run.summary["unmatched_results"]
            for name, run in runs.items()
            if "unmatched_results" in run.summary
        },
        "differences": result["pairs"],
    }


def _sentences(summary: dict[str, Any]) -> list[str]:
    """The scores of each system, compared with BM25."""
    main = MEASURES.split()[0]
    means = {name: values[main] for name, values in summary["measures"].items()}
    p_of = {
        frozenset((pair["a"], pair["b"])): pair["p"]
        for pair in summary["differences"]
        if pair["measure"] == main
    }
    sentences = []
    for name in means:
        if name == BASELINE:
            continue
        p, change = p_of[frozenset((name, BASELINE))], means[name] - means[BASELINE]
        word = "higher" if change >= 0 else "lower"
        chance = "" if p < 0.05 else ", which may be chance"
        sentences.append(
            f"{name}: {main} {means[name]:.3f} on {summary['questions']:,} questions, {abs(change):.3f} {word} than "
            f"{BASELINE} on the same passages ({means[BASELINE]:.3f}, p {format_p(p)}){chance}."
        )
        if unmatched := summary["unmatched_results"].get(name):
            sentences.append(
                f"{unmatched:,} results of {name} are no passages of these documents, and were left out."
            )
    return sentences


def _show(summary: dict[str, Any], opening: list[str]) -> None:
    for sentence in opening:
        log.note(sentence)
    rows = [{"system": name, **values} for name, values in summary["measures"].items()]
    log.show_rows(f"On {summary['questions']:,} questions", rows)
