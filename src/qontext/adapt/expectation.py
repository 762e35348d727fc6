"""The expected nDCG@10 of each system on real questions: what such systems had on other documents, and what was measured
on these.

    d_s   the system's nDCG@10 minus that of BM25 with the original encoder
    a priori                   d_s ~ N(m_s, τ_s²)                  from other sets of documents with real questions
    real questions             mean(x_s) ~ N(d_s, σ_s² / n)        σ_s: the standard deviation over the n questions, at
                                                                   least that with 4 others of σ = .25
    generated questions        mean(x_s) ~ N(d_s + b_s, β_s² + σ_s² / n)     b_s: what such questions add or take
    expected                   the mean of d_s given all of them

Generated questions share words with their passages, so they overrate BM25 and hardly distinguish what is built on it; b_s
and β_s say how much, on the same sets. With hundreds of real questions, these alone decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qontext.evaluation.ppi import AS_MANY, SIGMA
from qontext.retrieve.system import System

BASE = System("start", words=True).name
"""The system that others are compared with."""


@dataclass(frozen=True)
class Prior:
    """Means and standard deviations over sets of documents: m and τ of d, b and β of what generated questions add to it."""

    m: float
    tau: float
    b: float
    beta: float


PRIORS = {
    "bm25": Prior(-0.073, 0.068, 0.078, 0.070),
    "start": Prior(-0.049, 0.146, -0.078, 0.157),
    "hybrid-start": Prior(0.0, 0.01, 0.0, 0.01),
    "tokens-start": Prior(0.022, 0.017, -0.012, 0.021),
    "adapted": Prior(-0.027, 0.105, -0.033, 0.107),
    "hybrid": Prior(0.004, 0.011, 0.002, 0.013),
    "tokens": Prior(0.022, 0.017, -0.012, 0.021),
}
"""From benchmarks/adapt.py: FairytaleQA, CoSQA, SciFact (their dev or training questions), TREC DL 2019 over 5,000 passages,
and questions about source code, 40 training steps each. With tokens, the two encoders do not differ there (.023 and .021):
both have the mean, and what is measured decides between them."""
TAU_OF_PAIRS = 0.1
"""τ of a system with a cross-encoder, whichever it is: wide, so that its measurements decide."""


def _prior(name: str) -> Prior:
    """The prior of a system; of a cross-encoder, only what precedes it is known."""
    if name in PRIORS:
        return PRIORS[name]
    return replace(PRIORS[System.parse(name).first_stage.name], tau=TAU_OF_PAIRS)


@dataclass(frozen=True)
class SplitEvidence:
    """The evidence of n questions: the differences of each system from `BASE`, and their standard errors."""

    change: Mapping[str, float]
    error: Mapping[str, float]
    is_real: bool
    questions: int


def evidence(values: Mapping[str, NDArray[np.floating]], *, is_real: bool) -> SplitEvidence:
    """From the nDCG@10 of each question: system → [Q]."""
    base = values[BASE]
    changes = {name: column - base for name, column in values.items()}
    count = len(base)
    return SplitEvidence(
        {name: float(change.mean()) for name, change in changes.items()},
        {
            name: float(change.std(ddof=1) / count**0.5) if count > 1 else 1.0
            for name, change in changes.items()
        },
        is_real,
        count,
    )


def _variance(error: float, questions: int) -> float:
    """The variance of a mean over so many questions with this standard error: a few may all say the same by chance, so
    it is at least that which is pooled with other sets, as if `AS_MANY` questions had shown theirs."""
    own = error**2 * questions
    pooled = ((questions - 1) * own + AS_MANY * SIGMA**2) / (questions - 1 + AS_MANY)
    return max(own, pooled) / questions


def expected(found: list[SplitEvidence]) -> dict[str, float]:
    """System → the expected d, by precision."""
    names = found[0].change
    result = {}
    for name in names:
        prior = _prior(name)
        precisions, means = [1 / prior.tau**2], [prior.m]
        for one in found:
            bias, spread = (0.0, 0.0) if one.is_real else (prior.b, prior.beta)
            precisions.append(1 / (_variance(one.error[name], one.questions) + spread**2))
            means.append(one.change[name] - bias)
        result[name] = float(np.average(means, weights=precisions))
    return {**result, BASE: 0.0} if BASE in names else result
