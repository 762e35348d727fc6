"""`qontext evaluate`: score one run against judgments, or against answer strings.

`--out` writes ``scores.json`` (means, counts, benchmark), ``queries.parquet`` (every measure for every query)
and ``curves.json`` (recall by depth), which `report` reads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from qontext.frame import log
from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.files import StrPath
from qontext.frame.stages import Report, Stage

if TYPE_CHECKING:
    from qontext.data.collection import Qrels
    from qontext.data.load import AnyRun
    from qontext.data.runs import Run
    from qontext.evaluation.benchmarks import Judged
    from qontext.evaluation.measures import Floats, Scores


class Curves(TypedDict):
    """The content of `curves.json`: depths, and a value for each."""

    depths: list[int]
    curves: dict[str, list[float]]


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
    """With --out: run of the next stage's retriever, which adds nb-recall, the share of its top results that this run
    contains."""


def run(settings: EvaluateConfig, work: Workdir) -> dict[str, Any]:
    import pyarrow as pa

    from qontext.data.records import write_table
    from qontext.data.runs import read_run
    from qontext.evaluation.measures import DEPTHS

    scores, curves = _scores(
        settings.run, settings.qrels, settings.measures, settings.split, settings.relevant, settings.passages,
        settings.patterns,
    )  # fmt: skip
    if settings.next_run is not None:
        curves |= _neighborhood_recall(read_run(settings.run), read_run(settings.next_run), scores)
    columns = {"query": pa.array(scores.queries, pa.string())}
    with work.write("queries.parquet") as path:
        write_table(path, pa.table(columns | {name: pa.array(v) for name, v in scores.values.items()}))
    work.write_json("curves.json", {"depths": list(DEPTHS), "curves": curves})
    work.write_json("scores.json", scores.summary)
    return scores.summary


def show(settings: EvaluateConfig) -> dict[str, Any]:
    """Print the scores."""
    scores = evaluate(
        settings.run, settings.qrels, settings.measures, split=settings.split, relevant=settings.relevant,
        passages=settings.passages, patterns=settings.patterns,
    )  # fmt: skip
    log.show_table("evaluate", scores.summary)
    return scores.summary


def evaluate(
    run: AnyRun,
    qrels: Qrels | StrPath,
    measures: str | Sequence[str] = (),
    *,
    split: str = "test",
    relevant: int | None = None,
    passages: StrPath | None = None,
    patterns: bool = False,
) -> Scores:
    """Score a run by judgments, or by answer strings.

    Args:
        run: A `Run`, query → passage → score, a TREC run file, or the output directory of a search.
        qrels: Query → passage → grade, a qrels file, a folder in BEIR's layout, the name of a benchmark, or a file of
            questions with answers.
        measures: Measures in the notation of ir_measures, such as ``"MRR@10 nDCG@10 R@100"``, or ``"Answer@20"`` for
            answers. Default: the usual ones.
        split: Split of the judgments of a folder in BEIR's layout.
        relevant: Minimum relevant grade for all measures except nDCG. Default: the benchmark's, else 1.
        passages: Passages, needed to find answers in their texts.
        patterns: Answers are regular expressions rather than strings.

    >>> run = Run.of([Hit("q1", "p1", 2.0), Hit("q1", "p2", 1.0), Hit("q2", "p3", 1.0)])
    >>> scores = evaluate(run, {"q1": {"p2": 1}, "q2": {"p3": 1}}, "MRR@10 R@100")
    >>> scores.means
    {'MRR@10': 0.75, 'R@100': 1.0}
    >>> dict(zip(scores.queries, scores.values["MRR@10"].tolist()))
    {'q1': 0.5, 'q2': 1.0}
    """
    return _scores(run, qrels, measures, split, relevant, passages, patterns)[0]


def _scores(
    run: AnyRun,
    qrels: Qrels | StrPath,
    measures: str | Sequence[str],
    split: str,
    relevant: int | None,
    passages: StrPath | None,
    patterns: bool,
) -> tuple[Scores, dict[str, list[float]]]:
    """The scores of a run, and its curves of recall by depth."""
    from qontext.data.load import as_run
    from qontext.evaluation import answers
    from qontext.evaluation.measures import recall_by_depth

    if isinstance(qrels, str | os.PathLike) and answers.is_questions(qrels):
        return answers.by_answers(as_run(run), os.fspath(qrels), _joined(measures), passages, patterns)
    judged = judgments(qrels, split)
    note_grades(judged, relevant)
    scores, results = scored_run(run, "run", judged, measures, relevant)
    return scores, recall_by_depth(results, judged.qrels, threshold(judged, relevant))


def judgments(qrels: Qrels | StrPath, split: str) -> Judged:
    """The judgments of a file, folder or benchmark, or in memory."""
    from qontext.data.load import as_qrels
    from qontext.evaluation.benchmarks import Judged, load_judgments, recognize

    if isinstance(qrels, str | os.PathLike):
        return load_judgments(os.fspath(qrels), split=split)
    if not qrels:
        raise QontextError("no judgments are specified")
    judged = as_qrels(qrels)
    return Judged(judged, "the judgments", recognize(judged))


def scored_run(
    run: AnyRun,
    name: str,
    judged: Judged,
    measures: str | Sequence[str],
    relevant: int | None,
) -> tuple[Scores, Run]:
    """Score a run by judgments after checking that they belong together; `name` is that of a run in memory."""
    from qontext.data.load import as_run

    place = os.fspath(run) if isinstance(run, str | os.PathLike) else name
    run = as_run(run)
    check_ids(run, judged.qrels, place, judged.place)
    return score(run, judged, _joined(measures), relevant)


def _joined(measures: str | Sequence[str]) -> str:
    return measures if isinstance(measures, str) else " ".join(measures)


def score(run: Run, judged: Judged, names: str = "", relevant: int | None = None) -> tuple[Scores, Run]:
    """Score a run with the benchmark's conventions; returns the scores and the run as scored."""
    from qontext.evaluation import measures

    benchmark, lowest = judged.benchmark, threshold(judged, relevant)
    run = as_scored(run, judged)
    parsed = measures.parse(names or (benchmark.measures if benchmark else measures.DEFAULT), relevant=lowest)
    scores = measures.measure(run, judged.qrels, parsed, relevant=lowest)
    return replace(scores, benchmark=benchmark.name if benchmark else None), run


def as_scored(run: Run, judged: Judged) -> Run:
    """The run, by the benchmark's convention without results that are the query itself."""
    return _without_self(run) if judged.benchmark and judged.benchmark.drops_self else run


def threshold(judged: Judged, relevant: int | None) -> int:
    """The minimum relevant grade: the setting, else the benchmark's convention."""
    return (judged.benchmark.relevant if judged.benchmark else 1) if relevant is None else relevant


def _neighborhood_recall(first: Run, second: Run, scores: Scores) -> dict[str, list[float]]:
    import numpy as np

    from qontext.evaluation import measures
    from qontext.evaluation.measures import DEPTHS

    judged = set(scores.queries)
    is_judged = [query in judged for query in second.queries]
    if not any(is_judged):
        raise QontextError("no query of the next run has judgments")
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


def check_ids(run: Run, qrels: Qrels, run_place: str, qrels_place: str) -> None:
    """Refuse a run whose queries are not judged; warn if it hardly matches the judgments."""
    common = sum(query in qrels for query in run.queries)
    if run.queries and not common:
        raise QontextError(
            f"no query of the run is judged in {qrels_place}: the run has ids like {run.queries[0]!r}, the judgments like "
            f"{next(iter(qrels))!r}",
            place=run_place,
        )
    passages = {passage for judged in qrels.values() for passage in judged}
    if passages and passages.isdisjoint(run.ids):
        log.warn(f"{run_place}: none of its passages is judged in {qrels_place}. Every score is 0.")
    elif common < len(qrels) / 2:
        log.warn(f"{run_place}: has results for {common} of {len(qrels)} judged queries; the others score 0.")


def note_grades(judged: Judged, relevant: int | None) -> None:
    """Report how graded judgments are used by binary measures."""
    grades = {grade for rows in judged.qrels.values() for grade in rows.values() if grade > 0}
    if judged.benchmark is None and len(grades) > 1 and relevant is None:
        log.note(
            f"{judged.place} is graded up to {max(grades)}: MRR, recall and MAP count every grade from 1 on "
            "as relevant; --relevant sets another threshold."
        )


def per_query(evaluation: Artifact) -> tuple[list[str], dict[str, Floats]]:
    """The queries of an evaluation, and measure → [Q] the value of each."""
    import numpy as np
    import pyarrow as pa

    from qontext.data.records import read_whole

    table = read_whole(
        evaluation.part("queries.parquet"), pa.schema([pa.field("query", pa.string())])
    ).to_pydict()
    queries = [str(query) for query in table.pop("query")]
    return queries, {measure: np.array(column) for measure, column in table.items()}


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
    without_out=Report("evaluate", EvaluateConfig, show, EXAMPLES),
)
