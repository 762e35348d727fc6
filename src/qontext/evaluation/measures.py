"""Measures of a run against judgments, query by query, in the notation of ir_measures: ``nDCG@10``.

Common measures (MRR, R, Success, P, nDCG, MAP, Judged) are computed by fast kernels that agree with
trec_eval; all others are computed by ir_measures. The denominator of every mean is the number of judged
queries: a query without results scores 0, and results for queries without judgments are ignored. Ties are
broken as in trec_eval. ``R@k`` is the share of a query's relevant passages in the top k; what the MS MARCO
literature calls recall, whether the top k contain any of them, is ``Success@k``.

Kernels are array operations on the judged passages of a run, since only judged results affect a measure: Q queries (those of
the judgments), N judgments, J judged results. Each has the signature ``(found, cutoff, relevant) → [Q]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from qontext.data.collection import Qrels
from qontext.data.runs import Run
from qontext.frame import html
from qontext.frame.errors import QontextError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class JudgedResults:
    """The judgments as flat arrays, and their ranks in a run."""

    count: int  # Q
    judged_query: Ints  # [N]
    judged_grade: Ints  # [N]
    query: Ints  # [J] ascending
    rank: Ints  # [J] from 0, ascending within a query
    grade: Ints  # [J]
    length: Ints  # [Q] how many results the query has

    def per_query(self, mask: npt.NDArray[np.bool_], weights: Floats | None = None) -> Floats:
        """[Q] sum over the judged results in `mask`."""
        return np.bincount(
            self.query[mask], None if weights is None else weights[mask], minlength=self.count
        ).astype(float)

    def relevant(self, threshold: int) -> Floats:
        """[Q] the number of relevant passages in the judgments."""
        return np.bincount(self.judged_query[self.judged_grade >= threshold], minlength=self.count).astype(
            float
        )


def find(run: Run, qrels: Qrels) -> JudgedResults:
    """Join the run with the judgments."""
    number = {query: q for q, query in enumerate(qrels)}
    grades = np.array([g for judged in qrels.values() for g in judged.values()], dtype=np.int64)
    judged_query = np.repeat(np.arange(len(qrels)), [len(judged) for judged in qrels.values()])
    passages = np.array([p for judged in qrels.values() for p in judged], dtype=object)
    # Judged pairs that may be in the run, as (query, code of the passage) in one sortable number.
    place = np.minimum(np.searchsorted(run.ids, passages), len(run.ids) - 1)
    in_run = np.flatnonzero(run.ids[place] == passages if len(run.ids) else np.zeros(len(passages), bool))
    pairs = judged_query[in_run] * len(run.ids) + place[in_run]
    order = np.argsort(pairs)
    pairs, pair_grades = pairs[order], grades[in_run][order]

    run_query = np.array([number.get(query, -1) for query in run.queries], dtype=np.int64)
    row_query = np.repeat(run_query, np.diff(run.starts))
    is_judged = np.zeros(len(run.ids), dtype=bool)
    is_judged[place[in_run]] = True
    rows = np.flatnonzero(is_judged[run.codes] & (row_query >= 0))
    keys = row_query[rows] * len(run.ids) + run.codes[rows]
    at = np.minimum(np.searchsorted(pairs, keys), max(len(pairs) - 1, 0))
    hit = pairs[at] == keys if len(pairs) else np.zeros(0, dtype=bool)
    rows, at = rows[hit], at[hit]
    query, rank = row_query[rows], _trec_ranks(run, rows)
    order = np.lexsort((rank, query))
    length = np.zeros(len(qrels), dtype=np.int64)
    length[run_query[run_query >= 0]] = np.diff(run.starts)[run_query >= 0]
    return JudgedResults(
        len(qrels), judged_query, grades, query[order], rank[order], pair_grades[at][order], length
    )


def _trec_ranks(run: Run, rows: Ints) -> Ints:
    """The ranks of rows as in trec_eval: scores in single precision, ties by descending id."""
    row_start = np.repeat(run.starts[:-1], np.diff(run.starts))
    with np.errstate(over="ignore"):
        single = run.scores.astype(np.float32)
    first = np.ones(run.size, dtype=bool)
    first[1:] = (single[1:] != single[:-1]) | (row_start[1:] != row_start[:-1])
    starts = np.append(np.flatnonzero(first), run.size)  # of groups with one score
    group = np.searchsorted(starts, rows, side="right") - 1
    low, high = starts[group], starts[group + 1]
    ranks = rows.copy()
    for i in np.flatnonzero(high - low > 1):
        ranks[i] = low[i] + (run.codes[low[i] : high[i]] > run.codes[rows[i]]).sum()
    return np.asarray(ranks - row_start[rows], dtype=np.int64)


def reciprocal_rank(results: JudgedResults, cutoff: float, relevant: int) -> Floats:
    best = np.full(results.count, np.inf)
    mask = (results.grade >= relevant) & (results.rank < cutoff)
    np.minimum.at(best, results.query[mask], results.rank[mask] + 1.0)
    return 1 / best


def success(results: JudgedResults, cutoff: float, relevant: int) -> Floats:
    return (_hits(results, cutoff, relevant) > 0).astype(float)


def recall(results: JudgedResults, cutoff: float, relevant: int) -> Floats:
    return _ratio(_hits(results, cutoff, relevant), results.relevant(relevant))


def precision(results: JudgedResults, cutoff: float, relevant: int) -> Floats:
    return _hits(results, cutoff, relevant) / cutoff


def average_precision(results: JudgedResults, cutoff: float, relevant: int) -> Floats:
    mask = (results.grade >= relevant) & (results.rank < cutoff)
    query, rank = results.query[mask], results.rank[mask]
    # The rank of each relevant result among those of its query, from 1.
    number = np.arange(len(query)) - np.searchsorted(query, query) + 1
    total = np.bincount(query, number / (rank + 1), minlength=results.count)
    return _ratio(total, results.relevant(relevant))


def ndcg(results: JudgedResults, cutoff: float, relevant: int) -> Floats:
    """Gain = grade, discount = log2(rank + 1); negative grades have no gain. `relevant` is ignored."""
    gained = results.per_query(
        (results.grade > 0) & (results.rank < cutoff), results.grade / np.log2(results.rank + 2.0)
    )
    order = np.lexsort((-results.judged_grade, results.judged_query))
    query, grade = results.judged_query[order], results.judged_grade[order]
    rank = np.arange(len(query)) - np.searchsorted(query, query)
    mask = (grade > 0) & (rank < cutoff)
    ideal = np.bincount(query[mask], (grade / np.log2(rank + 2.0))[mask], minlength=results.count)
    return _ratio(gained, ideal)


def judged(results: JudgedResults, cutoff: float, relevant: int) -> Floats:
    return _ratio(results.per_query(results.rank < cutoff), np.minimum(results.length, cutoff))


def _hits(results: JudgedResults, cutoff: float, relevant: int) -> Floats:
    return results.per_query((results.grade >= relevant) & (results.rank < cutoff))


def _ratio(part: Any, whole: Any) -> Floats:
    ratio: Floats = np.divide(part, whole, out=np.zeros(len(part)), where=np.asarray(whole) > 0)
    return ratio


KERNELS: dict[str, Callable[[JudgedResults, float, int], Floats]] = {
    "RR": reciprocal_rank,
    "Success": success,
    "R": recall,
    "P": precision,
    "AP": average_precision,
    "nDCG": ndcg,
    "Judged": judged,
}
"""ir_measures' name of a measure → its kernel."""


DEFAULT = ("MRR@10", "nDCG@10", "R@100", "Success@100", "MAP", "Judged@10")
DEPTHS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
_KNOWN = "MRR@k, R@k, Success@k, nDCG@k, P@k, MAP, Judged@k"
_CHUNK = 256  # queries that are in ir_measures' form at a time


@dataclass(frozen=True, eq=False)
class Scores:
    """Every measure for every judged query. Q queries, in the order of the judgments."""

    queries: list[str]
    values: dict[str, Floats]  # measure → [Q]
    without_results: int
    without_relevant: int
    unjudged: int  # queries of the run without judgments
    timed_out: int = 0  # queries whose patterns took too long; they count as not answered
    benchmark: str | None = None  # the name of a known benchmark with these judgments

    def __repr__(self) -> str:
        means = ", ".join(f"{name} {mean:.4f}" for name, mean in self.means.items())
        return f"Scores of {len(self.queries):,} queries: {means}"

    @cached_property
    def means(self) -> dict[str, float]:
        return {name: float(column.mean()) for name, column in self.values.items()}

    def _repr_html_(self) -> str:
        means = {name: f"{mean:.4f}" for name, mean in self.means.items()}
        return html.table([means], f"Scores of {len(self.queries):,} queries")

    @property
    def summary(self) -> dict[str, Any]:
        """Means, counts and benchmark, as in `scores.json`."""
        return {"measures": self.means, **self.counts(), "benchmark": self.benchmark}

    def counts(self) -> dict[str, int]:
        """Counts of queries and missing results, for reports."""
        return {
            "queries": len(self.queries),
            "queries_without_results": self.without_results,
            "queries_without_relevant_passages": self.without_relevant,
            "queries_of_the_run_without_judgments": self.unjudged,
            **({"queries_timed_out": self.timed_out} if self.timed_out else {}),
        }


def parse(names: str | Sequence[str], *, relevant: int = 1) -> dict[str, Any]:
    """``"MRR@10 nDCG@10"`` → name → measure of ir_measures; `relevant` is the lowest grade that counts.

    The threshold is part of the name (``MRR(rel=2)@10``).
    """
    import ir_measures

    pipeline: Any = ir_measures.DefaultPipeline
    measures = {}
    for name in _words(names):
        try:
            measure = ir_measures.parse_measure(name)
            supported = pipeline.supports(measure)
        except (NameError, ValueError, AssertionError, KeyError, SyntaxError):
            supported = False
        if not supported:
            raise QontextError(
                f"unknown measure {name!r}", remedy=f"Choose from {_KNOWN}, with a number for k."
            )
        if int(measure.params.get("cutoff", 1)) < 1:
            raise QontextError(f"the depth of {name!r} must be at least 1")
        if relevant > 1 and not re.search(r"\brel\s*=", name) and _is_binary(measure):
            name, measure = _with_threshold(name, measure, relevant)
            if not pipeline.supports(measure):
                raise QontextError(f"{name} cannot be computed", remedy="Remove the measure or --relevant.")
        measures[name] = measure
    if not measures:
        raise QontextError("no measure is specified", remedy=f"Choose from {_KNOWN}.")
    return measures


def _is_binary(measure: Any) -> bool:
    """True if the grades from 1 are relevant to the measure, unless it has another threshold."""
    parameter = measure.SUPPORTED_PARAMS.get("rel")
    return parameter is not None and measure.params.get("rel", parameter.default) == 1


def _with_threshold(name: str, measure: Any, relevant: int) -> tuple[str, Any]:
    """The measure with another lowest grade that counts, and its name."""
    head, at, depth = name.partition("@")
    head = f"{head[:-1]}," if head.endswith(")") else f"{head}("
    return f"{head}rel={relevant}){at}{depth}", measure(rel=relevant)


def measure(run: Run, qrels: Qrels, measures: dict[str, Any], *, relevant: int = 1) -> Scores:
    """Score the run, query by query."""
    highest = max(max(judged.values(), default=0) for judged in qrels.values())
    if highest < relevant:
        raise QontextError(
            f"no passage is judged relevant: the minimum relevant grade is {relevant}, the highest grade is {highest}"
        )
    results = find(run, qrels)
    others = [m for m in measures.values() if not _has_kernel(m)]
    slow = _by_library(run, qrels, others) if others else {}
    values = {name: slow[m] if m in slow else _by_kernel(results, m) for name, m in measures.items()}
    judged_in_run = sum(query in qrels for query in run.queries)
    return Scores(
        queries=list(qrels),
        values=values,
        without_results=len(qrels) - judged_in_run,
        without_relevant=int((results.relevant(relevant) == 0).sum()),
        unjudged=len(run.queries) - judged_in_run,
    )


def recall_by_depth(run: Run, qrels: Qrels, relevant: int = 1) -> dict[str, list[float]]:
    """Mean R@k and Success@k for the depths of the curves."""
    results = find(run, qrels)
    return {
        name: [float(KERNELS[name](results, k, relevant).mean()) for k in DEPTHS] for name in ("R", "Success")
    }


def _has_kernel(measure: Any) -> bool:
    return measure.NAME in KERNELS and measure.params.keys() <= {"cutoff", "rel"}


def _by_kernel(results: JudgedResults, measure: Any) -> Floats:
    cutoff, relevant = measure.params.get("cutoff", np.inf), measure.params.get("rel", 1)
    return KERNELS[measure.NAME](results, cutoff, relevant)


def _by_library(run: Run, qrels: Qrels, measures: list[Any]) -> dict[Any, Floats]:
    """Measures without a kernel, computed by ir_measures in batches of queries to limit memory."""
    import ir_measures

    rows = {query: q for q, query in enumerate(run.queries)}
    columns = {m: np.zeros(len(qrels)) for m in measures}
    # Queries are named by their numbers, since gdeval reads no other names.
    pairs = [(str(i), query) for i, query in enumerate(qrels) if query in rows]
    for start in range(0, len(pairs), _CHUNK):
        chunk = pairs[start : start + _CHUNK]
        results = {number: dict(zip(*_lists(run, rows[query]))) for number, query in chunk}
        judged = {number: qrels[query] for number, query in chunk}
        for metric in ir_measures.iter_calc(measures, judged, results):
            columns[metric.measure][int(metric.query_id)] = metric.value
    return columns


def _lists(run: Run, q: int) -> tuple[list[str], list[float]]:
    passages, scores = run.rows(q)
    return passages, scores.tolist()


def _words(names: str | Sequence[str]) -> list[str]:
    """Split at spaces and commas outside of parentheses."""
    text = names if isinstance(names, str) else " ".join(names)
    return re.findall(r"[^\s,(]+(?:\([^)]*\))?[^\s,(]*", text)


def neighborhood_recall(stage1: Run, stage2: Run, *, n: int, depths: Sequence[int]) -> dict[int, Floats]:
    """nb-recall^n@k: how much of a second retriever's top results a first retriever contains.

        nb-recall^n@k = |top k of stage 1 ∩ top n of stage 2| / n, mean over the queries of stage 2

    High values mean that hard negatives mined with the first retriever are those that the second one meets
    (Gao & Callan, Unsupervised Corpus Aware Language Model Pre-training, equation 17 and figure 3).

    Returns depth k → [Q] value per query of `stage2`; a query that stage 1 lacks scores 0. The ranks of stage 2's top n in
    stage 1 are looked up once for all depths.
    """
    first = {query: q for q, query in enumerate(stage1.queries)}
    if not any(query in first for query in stage2.queries):
        raise QontextError(
            "the two runs have no query in common",
            remedy="Neighborhood recall needs runs over the same queries.",
        )
    values = {k: np.zeros(len(stage2.queries)) for k in depths}
    for q, query in enumerate(stage2.queries):
        if query not in first:
            continue
        rank = {passage: r for r, passage in enumerate(stage1.rows(first[query])[0])}
        ranks = np.array([rank.get(passage, np.inf) for passage in stage2.rows(q)[0][:n]])
        for k in depths:
            values[k][q] = (ranks < k).sum() / n
    return values
