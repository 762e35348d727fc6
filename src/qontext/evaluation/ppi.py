"""Prediction-powered inference: judgments of a few questions by people correct the scores of many with machine labels.

N questions have machine labels, by which a system scores g; n of them were judged by people, too, by which it scores h:

    mean        λ · mean_N(g)  +  mean_n(h - λ g)           unbiased, however wrong the machine labels are
    variance    λ² var(g) / N  +  var(h - λ g) / n
    λ           cov(h, g) / var(g), within [0, 1]: 0 where machine labels say nothing about people's

Angelopoulos et al., "Prediction-powered inference" (2023) and "PPI++" (2023); for retrieval, Oosterhuis et al. (2024).
Differences of two systems are estimated in the same way, from the differences of each question. Pure functions of scores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from qontext.evaluation.comparison import holm
from qontext.evaluation.measures import Floats

LEVEL = 0.05
SIGMA, AS_MANY = 0.25, 4
"""The standard deviation of a difference over the questions of a set, and the questions that such knowledge is worth."""
FLAT = 1e-9
"""Smaller differences come from rounding."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error; `weight` is λ, `judged` is n, `questions` is N. `machine` and `residual` are the
    variances of a question's machine score, times λ², and of what people's judgments differ from it. `is_flat`: people gave
    every question the same score, which by itself would have no variance."""

    mean: float
    weight: float
    judged: int
    questions: int
    machine: float
    residual: float
    is_flat: bool = False

    @property
    def error(self) -> float:
        return self.error_with(self.judged)

    def error_with(self, judged: int) -> float:
        """The standard error with another number of judged questions."""
        return math.sqrt(self.machine / self.questions + self.residual / judged)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        reach = t_quantile((1 + level) / 2, self.judged - 1) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def p(self) -> float:
        """The two-sided p of a mean of 0."""
        if self.is_flat:
            return 1.0 if abs(self.mean) < FLAT else 2.0 ** (1 - self.judged)
        return 2 * (1 - t_cdf(abs(self.mean) / self.error, self.judged - 1))

    def missing(self, level: float = LEVEL) -> int | None:
        """The number of further judgments with which a mean of this size would be significant; 0 if it is, None if no
        number of judgments of these questions would do."""
        if self.p < level:
            return 0
        for judged in range(self.judged + 1, self.questions + 1):
            error = self.error_with(judged)
            if error and 2 * (1 - t_cdf(abs(self.mean) / error, judged - 1)) < level:
                return judged - self.judged
        return None


def estimate(machine: Floats, people: Floats, judged: np.ndarray[Any, Any]) -> Estimate:
    """The mean score, from `machine` [N] scores of all questions and those by `people` [n] of the questions `judged` [n],
    numbers of questions."""
    n, predicted = len(people), machine[judged]
    spread, is_flat = float(predicted.var()), float(np.ptp(people)) < FLAT
    weight = 0.0
    if n > 2 and spread > 0 and not is_flat:
        weight = float(
            np.clip(((people - people.mean()) * (predicted - predicted.mean())).mean() / spread, 0, 1)
        )
    rest = people - weight * predicted
    free = n - (2 if weight else 1)
    residual = float(((rest - rest.mean()) ** 2).sum() / free) if free > 0 else math.inf
    if float(np.ptp(rest)) < FLAT and free > 0:  # a few questions may all say the same by chance
        residual = AS_MANY * SIGMA**2 / (free + AS_MANY)
    return Estimate(
        mean=float(weight * machine.mean() + rest.mean()),
        weight=weight,
        judged=n,
        questions=len(machine),
        machine=float(weight**2 * machine.var(ddof=1)) if len(machine) > 1 else 0.0,
        residual=residual,
        is_flat=is_flat,
    )


@dataclass(frozen=True)
class Corrected:
    """The systems by corrected means, and the differences of all pairs in the form of a comparison."""

    means: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    pairs: list[dict[str, Any]]
    judged: int

    def scores(self, measure: str) -> dict[str, dict[str, float]]:
        """The table of the systems: mean and interval."""
        return {
            name: {measure: mean, "low": self.intervals[name][0], "high": self.intervals[name][1]}
            for name, mean in self.means.items()
        }

    def changes(self, base: str, names: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
        """The differences of systems from another one, and their standard errors."""
        change, error = {base: 0.0}, {base: 0.0}
        for pair in self.pairs:
            if base in (pair["a"], pair["b"]):
                other, sign = (pair["b"], 1) if pair["a"] == base else (pair["a"], -1)
                change[other], error[other] = sign * pair["difference"]["mean"], pair["error"]
        return {name: change[name] for name in names}, {name: error[name] for name in names}

    def missing(self, chosen: str) -> tuple[str, int | None]:
        """The closest rival of a system, and the number of further judgments that would tell them apart."""
        rivals = [pair for pair in self.pairs if chosen in (pair["a"], pair["b"])]
        closest = min(rivals, key=lambda pair: (abs(pair["difference"]["mean"]), pair["a"], pair["b"]))
        missing: int | None = closest["missing"]
        return closest["b"] if closest["a"] == chosen else closest["a"], missing


def correct(
    machine: Mapping[str, Floats], people: Mapping[str, Floats], judged: np.ndarray[Any, Any], measure: str
) -> Corrected:
    """The systems compared: scores [N] by machine labels and [n] by people, for each system."""
    own = {name: estimate(machine[name], people[name], judged) for name in machine}
    both = list(itertools.combinations(machine, 2))
    differences = [estimate(machine[b] - machine[a], people[b] - people[a], judged) for a, b in both]
    level = LEVEL / max(1, len(both))
    pairs = [
        {
            "measure": measure,
            "a": a,
            "b": b,
            "difference": {"mean": one.mean, "low": one.interval()[0], "high": one.interval()[1], "p": one.p},
            "p": p,
            "error": one.error,
            "missing": 0 if p < LEVEL else one.missing(level),
        }
        for (a, b), one, p in zip(both, differences, holm([one.p for one in differences]))
    ]
    means = {name: one.mean for name, one in own.items()}
    return Corrected(means, {name: one.interval() for name, one in own.items()}, pairs, len(judged))


def t_cdf(t: float, freedom: int) -> float:
    """Student's distribution, P(T ≤ t). With t = √ν tan θ, its density is proportional to cos^(ν-1) θ."""
    if freedom < 1:
        return 0.5
    if freedom > 200:
        return NormalDist().cdf(t)
    angles = np.linspace(0, math.atan2(abs(t), math.sqrt(freedom)), 2001)
    half = math.sqrt(math.pi) * math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2)) / 2
    inside = float(np.trapezoid(np.cos(angles) ** (freedom - 1), angles)) / half / 2
    return 0.5 + math.copysign(inside, t)


def t_quantile(level: float, freedom: int) -> float:
    """The value below which Student's distribution has this share, of at least one half."""
    low, high = 0.0, 1e6
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < level else (low, middle)
    return high
