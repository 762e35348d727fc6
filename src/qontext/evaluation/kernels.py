"""Measures as array operations on the judged passages of a run. Only judged results affect a measure, so all
others are skipped. Q queries (those of the judgments), N judgments, J judged results. Every kernel has the
signature ``(found, cutoff, relevant) → [Q]`` and the same results as trec_eval, including the order of ties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qontext.data.collection import Qrels
from qontext.data.runs import Run

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
    in_run = np.flatnonzero(run.ids[place] == passages)
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
