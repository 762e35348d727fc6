"""Measures as array operations on the judged passages of a run. Only judged results affect a measure, so all
others are skipped. Q queries (those of the judgements), N judgements, J judged results. Every kernel has the
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
class Found:
    """The judgements as flat arrays, and their ranks in a run."""

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
        """[Q] the number of relevant passages in the judgements."""
        return np.bincount(self.judged_query[self.judged_grade >= threshold], minlength=self.count).astype(
            float
        )


def find(run: Run, qrels: Qrels) -> Found:
    """Join the run with the judgements."""
    number = {query: q for q, query in enumerate(qrels)}
    grades = np.array([g for judged in qrels.values() for g in judged.values()], dtype=np.int64)
    judged_query = np.repeat(np.arange(len(qrels)), [len(judged) for judged in qrels.values()])
    passages = np.array([p for judged in qrels.values() for p in judged], dtype=object)
    # Judged pairs that may be in the run, as (query, code of the passage) in one sortable number.
    place = np.minimum(np.searchsorted(run.ids, passages), len(run.ids) - 1)
    known = np.flatnonzero(run.ids[place] == passages)
    pairs = judged_query[known] * len(run.ids) + place[known]
    order = np.argsort(pairs)
    pairs, pair_grades = pairs[order], grades[known][order]

    run_query = np.array([number.get(query, -1) for query in run.queries], dtype=np.int64)
    row_query = np.repeat(run_query, np.diff(run.starts))
    is_judged = np.zeros(len(run.ids), dtype=bool)
    is_judged[place[known]] = True
    rows = np.flatnonzero(is_judged[run.codes] & (row_query >= 0))
    wanted = row_query[rows] * len(run.ids) + run.codes[rows]
    at = np.minimum(np.searchsorted(pairs, wanted), max(len(pairs) - 1, 0))
    hit = pairs[at] == wanted if len(pairs) else np.zeros(0, dtype=bool)
    rows, at = rows[hit], at[hit]
    query, rank = row_query[rows], _trec_ranks(run, rows)
    order = np.lexsort((rank, query))
    length = np.zeros(len(qrels), dtype=np.int64)
    length[run_query[run_query >= 0]] = np.diff(run.starts)[run_query >= 0]
    return Found(len(qrels), judged_query, grades, query[order], rank[order], pair_grades[at][order], length)


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


def reciprocal_rank(found: Found, cutoff: float, relevant: int) -> Floats:
    best = np.full(found.count, np.inf)
    mask = (found.grade >= relevant) & (found.rank < cutoff)
    np.minimum.at(best, found.query[mask], found.rank[mask] + 1.0)
    return 1 / best


def success(found: Found, cutoff: float, relevant: int) -> Floats:
    return (_hits(found, cutoff, relevant) > 0).astype(float)


def recall(found: Found, cutoff: float, relevant: int) -> Floats:
    return _ratio(_hits(found, cutoff, relevant), found.relevant(relevant))


def precision(found: Found, cutoff: float, relevant: int) -> Floats:
    return _hits(found, cutoff, relevant) / cutoff


def average_precision(found: Found, cutoff: float, relevant: int) -> Floats:
    mask = (found.grade >= relevant) & (found.rank < cutoff)
    query, rank = found.query[mask], found.rank[mask]
    # The rank of each relevant result among those of its query, from 1.
    number = np.arange(len(query)) - np.searchsorted(query, query) + 1
    total = np.bincount(query, number / (rank + 1), minlength=found.count)
    return _ratio(total, found.relevant(relevant))


def ndcg(found: Found, cutoff: float, relevant: int) -> Floats:
    """Gain = grade, discount = log2(rank + 1); negative grades have no gain. `relevant` is ignored."""
    gained = found.per_query(
        (found.grade > 0) & (found.rank < cutoff), found.grade / np.log2(found.rank + 2.0)
    )
    order = np.lexsort((-found.judged_grade, found.judged_query))
    query, grade = found.judged_query[order], found.judged_grade[order]
    rank = np.arange(len(query)) - np.searchsorted(query, query)
    mask = (grade > 0) & (rank < cutoff)
    ideal = np.bincount(query[mask], (grade / np.log2(rank + 2.0))[mask], minlength=found.count)
    return _ratio(gained, ideal)


def judged(found: Found, cutoff: float, relevant: int) -> Floats:
    return _ratio(found.per_query(found.rank < cutoff), np.minimum(found.length, cutoff))


def _hits(found: Found, cutoff: float, relevant: int) -> Floats:
    return found.per_query((found.grade >= relevant) & (found.rank < cutoff))


def _ratio(part: Any, whole: Any) -> Floats:
    ratio: Floats = np.divide(part, whole, out=np.zeros(len(part)), where=np.asarray(whole) > 0)
    return ratio


KERNELS: dict[str, Callable[[Found, float, int], Floats]] = {
    "RR": reciprocal_rank,
    "Success": success,
    "R": recall,
    "P": precision,
    "AP": average_precision,
    "nDCG": ndcg,
    "Judged": judged,
}
"""ir_measures' name of a measure → its kernel."""
