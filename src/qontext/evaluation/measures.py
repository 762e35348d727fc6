"""Measures of a run against judgments, query by query, in the notation of ir_measures: ``nDCG@10``.

Common measures (MRR, R, Success, P, nDCG, MAP, Judged) are computed by fast kernels that agree with
trec_eval; all others are computed by ir_measures. The denominator of every mean is the number of judged
queries: a query without results scores 0, and results for queries without judgments are ignored. Ties are
broken as in trec_eval. ``R@k`` is the share of a query's relevant passages in the top k; what the MS MARCO
literature calls recall, whether the top k contain any of them, is ``Success@k``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qontext.data.collection import Qrels
from qontext.data.runs import Run
from qontext.evaluation import kernels
from qontext.evaluation.kernels import Floats
from qontext.frame.errors import QontextError

DEFAULT = ("MRR@10", "nDCG@10", "R@100", "Success@100", "MAP", "Judged@10")
DEPTHS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
_KNOWN = "MRR@k, R@k, Success@k, nDCG@k, P@k, MAP, Judged@k"
_BINARY = ("RR", "R", "Success", "AP", "P", "Rprec", "Bpref")
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

    def __repr__(self) -> str:
        means = ", ".join(f"{name} {mean:.4f}" for name, mean in self.means.items())
        return f"Scores of {len(self.queries):,} queries: {means}"

    @cached_property
    def means(self) -> dict[str, float]:
        return {name: float(column.mean()) for name, column in self.values.items()}

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
        if relevant > 1 and measure.NAME in _BINARY and "rel" not in measure.params:
            measure = measure(rel=relevant)
            head, at, depth = name.partition("@")
            name = f"{head}(rel={relevant}){at}{depth}"
        measures[name] = measure
    if not measures:
        raise QontextError("no measure is specified", remedy=f"Choose from {_KNOWN}.")
    return measures


def measure(run: Run, qrels: Qrels, measures: dict[str, Any], *, relevant: int = 1) -> Scores:
    """Score the run, query by query."""
    highest = max(max(judged.values(), default=0) for judged in qrels.values())
    if highest < relevant:
        raise QontextError(
            f"no passage is judged relevant: the minimum relevant grade is {relevant}, the highest grade is {highest}"
        )
    results = kernels.find(run, qrels)
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
    results = kernels.find(run, qrels)
    return {
        name: [float(kernels.KERNELS[name](results, k, relevant).mean()) for k in DEPTHS]
        for name in ("R", "Success")
    }


def _has_kernel(measure: Any) -> bool:
    return measure.NAME in kernels.KERNELS and measure.params.keys() <= {"cutoff", "rel"}


def _by_kernel(results: kernels.JudgedResults, measure: Any) -> Floats:
    cutoff, relevant = measure.params.get("cutoff", np.inf), measure.params.get("rel", 1)
    return kernels.KERNELS[measure.NAME](results, cutoff, relevant)


def _by_library(run: Run, qrels: Qrels, measures: list[Any]) -> dict[Any, Floats]:
    """Measures without a kernel, computed by ir_measures in batches of queries to limit memory."""
    import ir_measures

    number = {query: i for i, query in enumerate(qrels)}
    columns = {m: np.zeros(len(qrels)) for m in measures}
    pairs = [(q, query) for q, query in enumerate(run.queries) if query in qrels]
    for start in range(0, len(pairs), _CHUNK):
        results = {query: dict(zip(*_lists(run, q))) for q, query in pairs[start : start + _CHUNK]}
        judged = {query: qrels[query] for query in results}
        for metric in ir_measures.iter_calc(measures, judged, results):
            columns[metric.measure][number[metric.query_id]] = metric.value
    return columns


def _lists(run: Run, q: int) -> tuple[list[str], list[float]]:
    passages, scores = run.rows(q)
    return passages, scores.tolist()


def _words(names: str | Sequence[str]) -> list[str]:
    """Split at spaces and commas outside of parentheses."""
    text = names if isinstance(names, str) else " ".join(names)
    return re.findall(r"[^\s,(]+(?:\([^)]*\))?[^\s,(]*", text)
