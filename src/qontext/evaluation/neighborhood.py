"""nb-recall^n@k: how much of a second retriever's top results a first retriever contains.

    nb-recall^n@k = |top k of stage 1 ∩ top n of stage 2| / n, mean over the queries of stage 2

High values mean that hard negatives mined with the first retriever are those that the second one meets
(Gao & Callan, Unsupervised Corpus Aware Language Model Pre-training, equation 17 and figure 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qontext.data.runs import Run
from qontext.evaluation.kernels import Floats
from qontext.frame.errors import QontextError


def neighborhood_recall(stage1: Run, stage2: Run, *, n: int, depths: Sequence[int]) -> dict[int, Floats]:
    """depth k → [Q] value per query of `stage2`; a query that stage 1 lacks scores 0.

    The ranks of stage 2's top n in stage 1 are looked up once for all depths.
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
