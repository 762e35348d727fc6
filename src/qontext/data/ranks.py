"""Check the ranks of a run file against its scores.

Results are ordered by score, as in trec_eval, so ranks have no effect. But two runs in one file, distances
instead of similarities, or new ranks with old scores can only be detected here, and would silently produce
wrong measures.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from qontext.data.lines import read_lines
from qontext.frame import log
from qontext.frame.errors import QontextError

Array = np.ndarray[Any, Any]


def check_ranks(query_codes: Array, queries: list[str], ranks: Array, scores: Array, place: Path) -> None:
    """Refuse ranks that occur twice or contradict all scores; warn if they contradict some.

    All arrays [R], rows as in the file. Equal ranks of equal scores are ties. The same rank for all rows of a
    query is a placeholder that some tools write.
    """
    same = query_codes[1:] == query_codes[:-1]
    if (~same | ((ranks[1:] > ranks[:-1]) & (scores[1:] <= scores[:-1]))).all() and (
        np.count_nonzero(~same) == len(queries) - 1
    ):
        return  # each query's rows together, best first, as in nearly every file
    _refuse_swapped(query_codes, ranks, scores, place)
    low, high = np.full(len(queries), np.inf), np.full(len(queries), -np.inf)
    np.minimum.at(low, query_codes, ranks)
    np.maximum.at(high, query_codes, ranks)
    rows = np.flatnonzero((low < high)[query_codes])
    rows = rows[np.lexsort((-scores[rows], ranks[rows], query_codes[rows]))]
    before, after = rows[:-1], rows[1:]
    same = query_codes[before] == query_codes[after]
    twice = np.flatnonzero(same & (ranks[before] == ranks[after]) & (scores[before] != scores[after]))
    if len(twice):
        first, second = sorted((int(before[twice[0]]), int(after[twice[0]])))
        raise QontextError(
            f"rank {ranks[first]:g} occurs twice for query {queries[query_codes[first]]!r}, with scores "
            f"{scores[first]:g} and {scores[second]:g}: the file may contain two runs",
            place=line_of(place, second),
            remedy="Separate the runs. If the ranks have no meaning, write the same rank on every line.",
        )
    rises = same & (scores[after] > scores[before])
    if not rises.any():
        return
    falls = same & (scores[after] < scores[before])
    example = int(before[np.flatnonzero(rises)[0]])
    query = queries[query_codes[example]]
    if not falls.any() and np.count_nonzero(rises) > 1:
        raise QontextError(
            f"the better the rank, the lower the score (as for query {query!r}): "
            "the scores are distances, or the ranks are reversed",
            place=place,
            remedy="Higher scores must be better: negate distances.",
        )
    count = len(np.unique(query_codes[before[rises]]))
    log.warn(
        f"{place}: ranks contradict scores for {count:,} of {len(queries):,} queries, such as {query!r}. "
        "Results are ordered by score; the ranks are ignored."
    )


def _refuse_swapped(query_codes: Array, ranks: Array, scores: Array, place: Path) -> None:
    """Detect swapped columns: scores that count the lines of each query, and descending ranks that are not
    positions."""
    same = query_codes[1:] == query_codes[:-1]
    counts_up, steps = (np.diff(scores) == 1)[same], np.diff(ranks)[same]
    most = np.bincount(query_codes)[query_codes]
    are_places = (ranks >= 0) & (ranks <= most) & (ranks == np.rint(ranks))
    if counts_up.all() and (steps <= 0).all() and (steps < 0).any() and not are_places.all():
        raise QontextError(
            "the rank and score columns are swapped",
            place=place,
            remedy="Expected the columns: query Q0 passage rank score tag.",
        )


def line_of(place: str | Path, row: int) -> str:
    """The place of a row: of a file, its line, where empty lines are no rows."""
    places = (place for place, _ in read_lines(Path(place))) if Path(place).is_file() else iter(())
    return next(itertools.islice(places, row, None), f"{place}:{row + 1}")
