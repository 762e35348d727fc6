"""Significance of differences: paired randomization tests, bootstrap intervals, Holm's correction, seeds.

The randomization test (Fisher; Smucker et al. 2007 for retrieval) estimates how often a mean difference at
least this large occurs if each query's two scores are swapped at random. It makes no assumptions about the
distribution of scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qontext.evaluation.kernels import Floats

_BLOCK_CELLS = 4_000_000  # random numbers in memory at a time


@dataclass(frozen=True)
class Difference:
    """B - A over the same queries, with interval and p value."""

    mean: float
    low: float  # 95 % bootstrap interval
    high: float
    p: float
    wins: int  # queries on which B is better
    losses: int
    ties: int


def difference(a: Floats, b: Floats, *, permutations: int = 10_000, seed: int = 42) -> Difference:
    """The difference of B and A; `a` and `b` [Q] have the same queries in the same order."""
    assert a.shape == b.shape, (a.shape, b.shape)
    delta = b - a
    low, high = bootstrap_interval(delta, resamples=permutations, seed=seed)
    return Difference(
        mean=float(delta.mean()),
        low=low,
        high=high,
        p=randomization_test(delta, permutations=permutations, seed=seed),
        wins=int((delta > 0).sum()),
        losses=int((delta < 0).sum()),
        ties=int((delta == 0).sum()),
    )


def randomization_test(delta: Floats, *, permutations: int = 10_000, seed: int = 42) -> float:
    """Two-sided p of the paired randomization test on the differences `delta` [Q]. Queries without a
    difference are skipped. With few others, all 2^n sign patterns are counted and p is exact; otherwise it is
    estimated as (hits + 1) / (draws + 1), which is never 0.
    """
    changed = delta[delta != 0]
    if len(changed) == 0:
        return 1.0
    observed = (
        abs(changed.sum()) - 1e-12 * np.abs(changed).sum()
    )  # a sum equal up to rounding counts as equal
    if 2 ** len(changed) <= permutations:
        patterns = np.arange(2 ** len(changed))[:, None] >> np.arange(len(changed)) & 1
        return float((np.abs((2.0 * patterns - 1.0) @ changed) >= observed).mean())
    random, hits = np.random.default_rng(seed), 0
    for rows in _blocks(permutations, len(changed)):
        bits = np.unpackbits(
            random.integers(0, 256, (rows, -(-len(changed) // 8)), dtype=np.uint8), axis=1, count=len(changed)
        )
        # Σ ±delta = 2 Σ_{bit set} delta - Σ delta
        sums = 2.0 * (bits @ changed) - changed.sum()
        hits += int((np.abs(sums) >= observed).sum())
    return (hits + 1) / (permutations + 1)


def bootstrap_interval(
    delta: Floats, *, resamples: int = 10_000, level: float = 0.95, seed: int = 42
) -> tuple[float, float]:
    """Percentile interval of the mean of `delta` [Q] over queries drawn with replacement."""
    random = np.random.default_rng(seed)
    means = [
        delta[random.integers(0, len(delta), (rows, len(delta)), dtype=np.int32)].mean(axis=1)
        for rows in _blocks(resamples, len(delta))
    ]
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p values that can be compared with a common threshold."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, so_far = [0.0] * len(p_values), 0.0
    for done, i in enumerate(order):
        so_far = max(so_far, min(1.0, (len(p_values) - done) * p_values[i]))
        corrected[i] = so_far
    return corrected


def mean_and_spread(seeds: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation over training seeds; a single seed has no deviation."""
    return float(np.mean(seeds)), float(np.std(seeds, ddof=1)) if len(seeds) > 1 else None


def _blocks(total: int, width: int) -> list[int]:
    size = max(1, _BLOCK_CELLS // max(width, 1))
    return [min(size, total - start) for start in range(0, total, size)]
