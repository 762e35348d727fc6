"""Measures of a run against judgements: MRR@k, R@k, Success@k, nDCG@k, MAP, Judged@k, and whatever else
ir_measures knows, query by query.

The denominator of every mean is the number of queries that the judgements name: a query without results
scores 0, a result for a query without judgements counts for nothing. Ties are broken as trec_eval breaks
them. ``R@k`` is the share of a query's relevant passages that the top k hold; what the MS MARCO literature
calls recall, whether the top k hold any of them, is ``Success@k``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from qontext.collection import Qrels
from qontext.errors import QontextError
from qontext.retrieve.runs import Run

Floats = npt.NDArray[np.float64]

DEFAULT = ("MRR@10", "nDCG@10", "R@100", "Success@100", "MAP", "Judged@10")
DEPTHS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
_KNOWN = "MRR@k, R@k, Success@k, nDCG@k, P@k, MAP, Judged@k"
_BINARY = ("RR", "R", "Success", "AP", "P", "Rprec", "Bpref")
_CHUNK = 256  # queries that are in trec_eval's form at a time: bounds the memory that a long run takes


@dataclass(frozen=True, eq=False)
class Scores:
    """Every measure for every judged query. Q queries, in the order of the judgements."""

    queries: list[str]
    values: dict[str, Floats]  # measure → [Q]
    without_results: int
    without_relevant: int
    unjudged: int  # queries of the run that the judgements lack

    @cached_property
    def means(self) -> dict[str, float]:
        return {name: float(column.mean()) for name, column in self.values.items()}

    def counts(self) -> dict[str, int]:
        """How many queries there were, and what was missing, for reports."""
        return {
            "queries": len(self.queries),
            "queries_without_results": self.without_results,
            "queries_without_relevant_passages": self.without_relevant,
            "queries_of_the_run_without_judgements": self.unjudged,
        }


def parse(names: str | Sequence[str], *, relevant: int = 1) -> dict[str, Any]:
    """``"MRR@10 nDCG@10"`` → name → measure of ir_measures; `relevant` is the lowest grade that counts.

    The threshold shows in the name (``MRR(rel=2)@10``), so that two tables cannot be confused.
    """
    import ir_measures

    pipeline: Any = ir_measures.DefaultPipeline
    found = {}
    for name in _words(names):
        try:
            measure = ir_measures.parse_measure(name)
            supported = pipeline.supports(measure)
        except (NameError, ValueError, AssertionError, KeyError, SyntaxError):
            supported = False
        if not supported:
            raise QontextError(
                f"no such measure: {name!r}", remedy=f"Known are {_KNOWN}, with a number for k."
            )
        if int(measure.params.get("cutoff", 1)) < 1:
            raise QontextError(f"the depth of {name!r} must be at least 1")
        if relevant > 1 and measure.NAME in _BINARY and "rel" not in measure.params:
            measure = measure(rel=relevant)
            head, at, depth = name.partition("@")
            name = f"{head}(rel={relevant}){at}{depth}"
        found[name] = measure
    if not found:
        raise QontextError("no measure was asked for", remedy=f"Known are {_KNOWN}.")
    return found


def measure(run: Run, qrels: Qrels, measures: dict[str, Any], *, relevant: int = 1) -> Scores:
    """Score the run. 6,980 queries of 1,000 results take a few seconds; memory grows by the chunk only."""
    import ir_measures

    if max(max(judged.values(), default=0) for judged in qrels.values()) < relevant:
        raise QontextError(
            f"no passage is judged relevant: the lowest relevant grade is {relevant}, the highest given is "
            f"{max(max(judged.values(), default=0) for judged in qrels.values())}"
        )
    queries = list(qrels)
    number = {query: i for i, query in enumerate(queries)}
    wanted = {name: _without_cutoff_if_rr(m) for name, m in measures.items()}
    evaluator = ir_measures.evaluator(list(dict.fromkeys(wanted.values())), qrels)
    columns = {m: np.zeros(len(queries)) for m in wanted.values()}
    for chunk in _chunks(run, qrels):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for metric in evaluator.iter_calc(chunk):
                if metric.query_id in chunk:
                    columns[metric.measure][number[metric.query_id]] = metric.value
    values = {name: _cut(columns[wanted[name]], measures[name]) for name in measures}
    judged_in_run = sum(query in qrels for query in run.queries)
    return Scores(
        queries=queries,
        values=values,
        without_results=len(queries) - judged_in_run,
        without_relevant=sum(max(judged.values(), default=0) < relevant for judged in qrels.values()),
        unjudged=len(run.queries) - judged_in_run,
    )


def depth_measures(depths: Sequence[int] = DEPTHS) -> str:
    """The measures of the recall-at-depth curves."""
    return " ".join(f"R@{k} Success@{k}" for k in depths)


def _chunks(run: Run, qrels: Qrels) -> Iterator[dict[str, dict[str, float]]]:
    chunk: dict[str, dict[str, float]] = {}
    for q, query in enumerate(run.queries):
        if query in qrels:
            passages, scores = run.rows(q)
            chunk[query] = dict(zip(passages, scores.tolist()))
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = {}
    if chunk:
        yield chunk


def _without_cutoff_if_rr(measure: Any) -> Any:
    """RR@k is RR where that is at least 1/k: one pass of trec_eval serves every k, with its order of ties."""
    if measure.NAME != "RR":
        return measure
    return type(measure)(**{key: value for key, value in measure.params.items() if key != "cutoff"})


def _cut(column: Floats, measure: Any) -> Floats:
    if measure.NAME != "RR" or "cutoff" not in measure.params:
        return column
    return np.where(column >= 1 / measure.params["cutoff"], column, 0.0)


def _words(names: str | Sequence[str]) -> list[str]:
    """Split at spaces and commas outside of parentheses."""
    text = names if isinstance(names, str) else " ".join(names)
    return re.findall(r"[^\s,(]+(?:\([^)]*\))?[^\s,(]*", text)
