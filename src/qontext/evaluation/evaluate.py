"""`qontext evaluate`: score one run against judgments, or against answer strings.

`--out` writes ``scores.json`` (means, counts, benchmark), ``queries.parquet`` (every measure for every query)
and ``curves.json`` (recall by depth), which `report` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from qontext.frame import log
from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.stages import Report, Stage

if TYPE_CHECKING:
    from qontext.data.runs import Run
    from qontext.evaluation.datasets import Benchmark, Judged
    from qontext.evaluation.measures import Floats, Scores

NEIGHBORS = (50, 100)  # the n of nb-recall^n@k, as published


class EvaluateConfig(StageConfig):
    run: Annotated[str, Input(positional=True)]
    """A TREC run file, or the output directory of a search."""

    qrels: Annotated[str, Input(positional=True)]
    """Judgments: a qrels file, a folder in BEIR's layout, the name of a benchmark (trec-dl-2019,
    msmarco-passage/dev, beir/scifact …), or a file of questions with answers."""

    split: str = "test"
    """Split of the judgments of a folder in BEIR's layout."""

    measures: str = ""
    """Measures, such as "MRR@10 nDCG@10 R@100 Success@50 MAP Judged@10", or "Answer@20" for answers. Default:
    the usual ones for the benchmark."""

    relevant: Annotated[int | None, Field(ge=1)] = None
    """Minimum relevant grade for all measures except nDCG. Default: 1, or 2 for TREC DL."""

    passages: Annotated[str | None, Input()] = None
    """Passages, needed to find answers in their texts."""

    patterns: bool = False
    """Answers are regular expressions rather than strings."""

    next_run: Annotated[str | None, Input()] = None
    """Run of the next stage's retriever: adds nb-recall, the share of its top results that this run contains."""


def run(settings: EvaluateConfig, work: Workdir) -> dict[str, Any]:
    import pyarrow as pa

    from qontext.data.records import write_table
    from qontext.evaluation.measures import DEPTHS

    scores, curves, summary = _evaluate(settings)
    columns = {"query": pa.array(scores.queries, pa.string())}
    with work.write("queries.parquet") as path:
        write_table(path, pa.table(columns | {name: pa.array(v) for name, v in scores.values.items()}))
    work.write_json("curves.json", {"depths": list(DEPTHS), "curves": curves})
    work.write_json("scores.json", summary)
    return summary


def show(settings: EvaluateConfig) -> dict[str, Any]:
    """Print the scores."""
    summary = _evaluate(settings)[2]
    log.show_table("evaluate", summary)
    return summary


def _returned(summary: Mapping[str, Any]) -> Artifact:
    """The scores as a finished directory would have them."""
    return Artifact(Path(), {"verb": "evaluate", "summary": dict(summary)})


def _evaluate(settings: EvaluateConfig) -> tuple[Scores, dict[str, list[float]], dict[str, Any]]:
    """The scores, the curves by depth, and the summary."""
    from qontext.data.runs import read_run
    from qontext.evaluation import answers, checks

    checks.check_kinds(settings.run, settings.qrels)
    results = read_run(settings.run)
    if Path(settings.qrels).is_file() and answers.is_questions(Path(settings.qrels)):
        scores, curves, benchmark = _by_answers(settings, results)
    else:
        scores, curves, benchmark = _by_judgments(settings, results)
    if settings.next_run is not None:
        curves |= _neighborhood_recall(results, read_run(settings.next_run), scores)
    name = benchmark.name if benchmark else None
    return scores, curves, {"measures": scores.means, **scores.counts(), "benchmark": name}


def score(run: Run, judged: Judged, names: str = "", relevant: int | None = None) -> tuple[Scores, Run]:
    """Score a run with the benchmark's conventions; returns the scores and the run as scored."""
    from qontext.evaluation import measures

    benchmark = judged.benchmark
    lowest = threshold(judged, relevant)
    if benchmark and benchmark.drops_self:
        run = _without_self(run)
    parsed = measures.parse(names or (benchmark.measures if benchmark else measures.DEFAULT), relevant=lowest)
    return measures.measure(run, judged.qrels, parsed, relevant=lowest), run


def threshold(judged: Judged, relevant: int | None) -> int:
    """The minimum relevant grade: the setting, else the benchmark's convention."""
    return relevant or (judged.benchmark.relevant if judged.benchmark else 1)


def _by_judgments(
    settings: EvaluateConfig, results: Run
) -> tuple[Scores, dict[str, list[float]], Benchmark | None]:
    from qontext.evaluation import checks, measures
    from qontext.evaluation.datasets import load_judgments

    judged = load_judgments(settings.qrels, split=settings.split)
    checks.check_ids(results, judged.qrels, settings.run, judged.place)
    checks.note_grades(judged, settings.relevant)
    scores, results = score(results, judged, settings.measures, settings.relevant)
    curves = measures.recall_by_depth(results, judged.qrels, threshold(judged, settings.relevant))
    return scores, curves, judged.benchmark


def _by_answers(
    settings: EvaluateConfig, results: Run
) -> tuple[Scores, dict[str, list[float]], Benchmark | None]:
    import numpy as np

    from qontext.data.collection import read_passages
    from qontext.evaluation import answers, checks
    from qontext.evaluation.measures import DEPTHS, Scores

    if settings.passages is None:
        raise QontextError("finding answers needs --passages", remedy="Add --passages.")
    questions = answers.read_questions(settings.qrels)
    names = settings.measures.replace(",", " ").split() or ["Answer@5", "Answer@20", "Answer@100"]
    cutoffs = {name: _answer_cutoff(name) for name in names}
    checks.check_ids(results, {id: {} for id in questions}, settings.run, settings.qrels)
    ids = set(results.top(max(*cutoffs.values(), *DEPTHS)).ids.tolist())
    texts = {p.id: p.text for p in read_passages(settings.passages) if p.id in ids}
    ranks = answers.answer_ranks(results, questions, texts, depth=max(DEPTHS), patterns=settings.patterns)
    in_run = sum(query in questions for query in results.queries)
    values: dict[str, Floats] = {name: (ranks <= k).astype(float) for name, k in cutoffs.items()}
    unjudged, timed_out = len(results.queries) - in_run, int(np.isnan(ranks).sum())
    scores = Scores(list(questions), values, len(questions) - in_run, 0, unjudged, timed_out)
    curves = {"Answer": [float((ranks <= k).mean()) for k in DEPTHS]}
    return scores, curves, answers.recognize(Path(settings.qrels), len(questions))


def _answer_cutoff(name: str) -> int:
    from qontext.evaluation.measures import DEPTHS

    head, _, depth = name.partition("@")
    if head != "Answer" or not depth.isdigit() or not 1 <= int(depth) <= max(DEPTHS):
        raise QontextError(
            f"{name!r} cannot be computed from answers", remedy=f"Use Answer@k, with k up to {max(DEPTHS)}."
        )
    return int(depth)


def _neighborhood_recall(first: Run, second: Run, scores: Scores) -> dict[str, list[float]]:
    import numpy as np

    from qontext.evaluation import measures
    from qontext.evaluation.measures import DEPTHS

    judged = set(scores.queries)
    is_judged = [query in judged for query in second.queries]
    curves = {}
    for n in NEIGHBORS:
        values = measures.neighborhood_recall(first, second, n=n, depths=DEPTHS)
        curves[f"nb-recall^{n}"] = [float(np.mean(values[k][is_judged])) for k in DEPTHS]
    return curves


def _without_self(run: Run) -> Run:
    """The run without results that are the query itself."""
    import numpy as np

    from qontext.data.runs import Run

    query_codes = run.row_queries()
    queries = np.array(run.queries, dtype=object)
    keep = run.ids[run.codes] != queries[query_codes]
    return Run.from_codes(query_codes[keep], run.queries, run.codes[keep], run.ids, run.scores[keep])


EXAMPLES = """
        qontext evaluate run.trec data
        qontext evaluate run.trec data/qrels/test.tsv --measures "nDCG@10 R@100" --out scores
        qontext evaluate run.trec trec-dl-2019 --json
        qontext evaluate nq.trec nq-test.qa.csv --passages passages
"""

STAGE = Stage(
    "evaluate",
    EvaluateConfig,
    run,
    EXAMPLES,
    without_out=Report("evaluate", EvaluateConfig, show, EXAMPLES, returned=_returned),
)
