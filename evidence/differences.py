"""Differences of arms over the same questions. Questions about the same document are no independent draws:

    d    = 1/S Σ_s d_s,  d_s = mean over the questions q of s of (b_q - a_q)      sets count equally
    SE²  = 1/S² Σ_s C/(C-1) Σ_c (Σ_{q in c} (b_q - a_q - d_s))² / Q_s²            C clusters, Q_s questions
    interval = d ± t · SE, with Satterthwaite's degrees of freedom of the sets' C-1

p counts all ways of exchanging the two scores within clusters where there are at most `EXACT` of these; above, it is that
of d / SE.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from clusters import Ints

from qontext.evaluation.comparison import Difference
from qontext.evaluation.measures import Floats
from qontext.evaluation.ppi import t_cdf, t_quantile

EXACT = 20


def precise(a: Floats, b: Floats, clusters: Ints) -> Difference:
    """The difference of one set."""
    return over_sets([(a, b, clusters)])


def over_sets(sets: Sequence[tuple[Floats, Floats, Ints]], level: float = 0.95) -> Difference:
    """The difference averaged over sets, each of them a, b and `clusters` [Q]."""
    sums, variances, freedoms = [], [], []
    for a, b, clusters in sets:
        of, sizes = np.bincount(clusters, b - a), np.bincount(clusters)
        sums.append(of / len(a) / len(sets))
        rest = (of - (b - a).mean() * sizes) / len(a) / len(sets)
        freedoms.append(max(len(of) - 1, 1))
        variances.append(float(rest @ rest) * len(of) / freedoms[-1])
    changes, weighted = np.concatenate([b - a for a, b, _ in sets]), np.concatenate(sums)
    mean, variance = float(weighted.sum()), sum(variances)
    shares = sum(own**2 / freedom for own, freedom in zip(variances, freedoms))
    freedom = int(variance**2 / shares) if shares else sum(freedoms)
    half = t_quantile((1 + level) / 2, freedom) * math.sqrt(variance)
    is_exact = np.count_nonzero(weighted) <= EXACT
    t = abs(mean) / max(math.sqrt(variance), 1e-12)
    p = exact(weighted) if is_exact else 2 * (1 - t_cdf(t, freedom))
    return Difference(
        mean=mean,
        low=mean - half,
        high=mean + half,
        p=p,
        wins=int((changes > 0).sum()),
        losses=int((changes < 0).sum()),
        ties=int((changes == 0).sum()),
    )


def exact(weighted: Floats) -> float:
    """The share of all signs of these numbers whose sum is at least as far from 0."""
    totals = np.zeros(1)
    for number in weighted[weighted != 0]:
        totals = np.concatenate([totals + number, totals - number])
    return float((np.abs(totals) >= abs(weighted.sum()) - 1e-12).mean())
