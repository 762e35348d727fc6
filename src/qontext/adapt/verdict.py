"""The verdict: which of the measured systems to use.

    cost     BM25 alone < an encoder, with or without BM25 < the same, then its tokens < the same, then a cross-encoder
    value    the expected nDCG@10 on real questions, minus a margin for each step of cost
    choice   the system of the highest value

Every measured system is a candidate, and is judged as a whole: what counts is how an adapted encoder does beside BM25, not
only by itself. p values are reported, and decide nothing.

What is expected of a system is what such systems had on other documents, and what was measured on these:

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

import html
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qontext.adapt.judgments import about_judgments, corrected
from qontext.evaluation.compare import compare
from qontext.evaluation.comparison import Comparison
from qontext.evaluation.evaluate import per_query
from qontext.evaluation.ppi import AS_MANY, LEVEL, SIGMA
from qontext.frame import log
from qontext.frame.artifacts import open_artifact
from qontext.frame.html import table
from qontext.retrieve.system import ENCODERS, EncoderName, System, label_of
from qontext.workflow.show import score_tables

MEASURE = "nDCG@10"
JUDGED = "judged"
"""The name of the split of the questions that people judged."""
MARGIN = 0.005
"""Expected nDCG@10 that a system has to gain to be worth the next higher cost."""
FEW_QUESTIONS = 200
"""Number of questions below which the verdict says how large a difference they could show."""
FLATTERY = (
    "There are no real questions, so these results are for generated ones about documents that were not trained on. "
    "Such questions favor a model that was trained on similar ones, and BM25, because they share words with their "
    "passages: the order of the systems is less reliable. Provide labels if you can, or judge some answers (--judge 30)."
)
WRITTEN = (
    "There are no real questions, so these results are for questions that a language model wrote about documents that "
    "were not trained on. The order of the systems may differ from that on real questions. Provide labels if you can, or "
    "judge some answers (--judge 30)."
)
MEANING = "p is the probability of a difference at least this large between equally good systems."


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


@dataclass(frozen=True)
class Verdict:
    """`system` is the recommended one, `encoder` is 'start' or 'adapted'. `split` is the deciding one. The first of the
    `sentences` is the recommendation, the others are its reasons. `scores` and `queries` (their number) are by split;
    `differences` has all pairs on all splits.
    """

    system: str
    encoder: str
    sentences: list[str]
    split: str
    scores: dict[str, dict[str, dict[str, float]]]
    queries: dict[str, int]
    differences: list[dict[str, Any]] = field(default_factory=list)
    people: str = ""
    """The split whose questions people judge; empty: the deciding one."""

    @property
    def judged_split(self) -> str:
        return self.people or self.split

    @property
    def asked_split(self) -> str:
        """The split whose questions the systems were asked, of the deciding ones."""
        return self.judged_split if self.split == JUDGED else self.split

    @property
    def systems(self) -> list[str]:
        """All measured systems."""
        return list(self.scores[self.split])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def _repr_html_(self) -> str:
        sentences = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.sentences)
        return sentences + "".join(table(rows, title) for title, rows in score_tables(self.as_json()))


@dataclass(frozen=True)
class Measured:
    """The systems on the deciding questions: their means, simple ones first, and the differences of all pairs."""

    means: Mapping[str, float]
    pairs: Sequence[Mapping[str, Any]]
    n: int
    is_real: bool
    kind: str = ""

    @property
    def questions(self) -> str:
        return f"{self.n:,} {self.kind or ('real' if self.is_real else 'generated')} questions"

    def pair(self, a: str, b: str) -> tuple[float, float]:
        """The difference from a to b, and its p."""
        return self.means[b] - self.means[a], self.p(a, b)

    def p(self, a: str, b: str) -> float:
        return next(float(pair["p"]) for pair in self.pairs if {pair["a"], pair["b"]} == {a, b})

    def detectable(self, system: str) -> float:
        """The difference from a system that the questions would show in four cases of five. The level is that of the first
        of Holm's tests, as if all pairs were tested at once."""
        spans = (
            float(pair["difference"]["high"] - pair["difference"]["low"])
            for pair in self.pairs
            if system in (pair["a"], pair["b"])
        )
        normal = statistics.NormalDist()
        errors = normal.inv_cdf(1 - LEVEL / 2 / len(self.pairs)) + normal.inv_cdf(0.8)
        return errors * statistics.median(spans) / (2 * normal.inv_cdf(0.975))


def judge(
    steps: Path, splits: list[str], systems: list[str], also: Sequence[str] = (), people: str | None = None
) -> Verdict:
    """Read the recipe's scores and compare the runs. The outside systems in `also` are measured, but no candidates. `people`
    is the split whose questions people judge, if it is not the deciding one."""
    measured_systems = [*systems, *also]
    scores = {
        split: {
            name: open_artifact(steps / f"score-{name}-{split}").summary.take("measures", dict[str, float])
            for name in measured_systems
        }
        for split in splits
    }
    split = "test" if "test" in splits else splits[0]
    compared = {name: _compared(steps, name, measured_systems) for name in splits}
    counts = {name: len(result.queries) for name, result in compared.items()}
    means = {name: scores[split][name][MEASURE] for name in systems}
    judgments, undecided = corrected(steps.parent, people or split, measured_systems, MEASURE)
    pairs = {name: [asdict(pair) for pair in result] for name, result in compared.items()}
    measured, decided = Measured(means, pairs[split], counts[split], split != "generated"), split
    differences = [{"split": name, **pair} for name, own in pairs.items() for pair in own]
    found = {name: evidence(_values(steps, name, systems), is_real=name != "generated") for name in splits}
    if judgments is not None:
        scores, counts = {JUDGED: judgments.scores(MEASURE), **scores}, {JUDGED: judgments.judged, **counts}
        differences = [*({"split": JUDGED, **pair} for pair in judgments.pairs), *differences]
        means = {name: judgments.means[name] for name in systems}
        measured, decided = Measured(means, judgments.pairs, judgments.judged, True, "judged"), JUDGED
        found[people or split] = SplitEvidence(*judgments.changes(BASE, systems), True, judgments.judged)
    hoped = expected(list(found.values()))
    system = choose(hoped)
    sentences = explain(system, measured, hoped)
    outside = {name: scores[decided][name][MEASURE] for name in also}
    sentences[1:1] = compared_with(system, outside, measured)
    sentences += undecided
    if judgments is not None:
        sentences += about_judgments(judgments, system, label_of)
    elif not measured.is_real:
        is_written = "question_model" in open_artifact(steps / "holdout").inputs
        sentences.append(WRITTEN if is_written else FLATTERY)
    encoder = encoder_for(system, means)
    return Verdict(system, encoder, sentences, decided, scores, counts, differences, people or split)


def _values(steps: Path, split: str, systems: list[str]) -> dict[str, Any]:
    """System → the nDCG@10 of each question."""
    return {name: per_query(open_artifact(steps / f"score-{name}-{split}"))[1][MEASURE] for name in systems}


def _compared(steps: Path, split: str, systems: list[str]) -> Comparison:
    """The paired tests of all systems on one split."""
    with log.warnings_only():
        runs = {name: steps / f"{name}-{split}" for name in systems}
        return compare(runs, steps / "holdout" / "measured", MEASURE, split=split)


def choose(expected: Mapping[str, float]) -> str:
    """The recommended system; of equally good ones, the first."""
    return max(expected, key=lambda name: expected[name] - MARGIN * System.parse(name).cost)


def encoder_for(system: str, means: Mapping[str, float]) -> EncoderName:
    """The encoder that is handed over: the system's, or for BM25 alone, that of the best other system."""
    encoder = System.parse(system).encoder or System.parse(_best(1, means)).encoder
    assert encoder is not None
    return encoder


def _best(cost: int, means: Mapping[str, float]) -> str:
    """The best system of this cost; of equal ones, the first."""
    return max((name for name in means if System.parse(name).cost == cost), key=lambda name: means[name])


def explain(system: str, measured: Measured, expected: Mapping[str, float]) -> list[str]:
    """The recommendation, then its reasons."""
    return [
        f"Recommended: {label_of(system)}, {MEASURE} {measured.means[system]:.3f} on {measured.questions}.",
        *_gains(system, measured),
        *_adapting(system, measured),
        _reason(system, measured, expected),
        MEANING,
        *_few(system, measured),
    ]


def _gains(system: str, measured: Measured) -> Iterator[str]:
    """The differences from the systems that need no adapting."""
    for name in ("bm25", "start"):
        if name != system:
            change, p = measured.pair(name, system)
            than = f"than {_the(name)} ({measured.means[name]:.3f}; {with_p(p)})"
            chance = "" if p < LEVEL else ", which may be chance"
            yield f"{abs(change):.3f} {'higher' if change >= 0 else 'lower'} {than}{chance}."


def compared_with(system: str, outside: Mapping[str, float], measured: Measured) -> Iterator[str]:
    """The comparison of the recommended system with each of those that are used today."""
    for name, mean in outside.items():
        change = measured.means[system] - mean
        if change == 0:
            yield f"{name} has {mean:.3f}, the same."
            continue
        p = measured.p(name, system)
        word = "better" if change > 0 else "worse"
        what = (
            f"{word} than {name}"
            if p < LEVEL
            else f"not clearly {word} than {name}: the difference may be chance"
        )
        yield f"{name} has {mean:.3f}, {abs(change):.3f} {'less' if change > 0 else 'more'} ({with_p(p)}): this is {what}."


def _adapting(system: str, measured: Measured) -> Iterator[str]:
    """The effect of adapting: the same system with the adapted and with the original encoder."""
    means = measured.means
    if "adapted" not in means:
        return
    encoder = encoder_for(system, means)
    part = System.parse(system if System.parse(system).encoder else _best(1, means))
    start, adapted = (part.with_encoder(one).name for one in ENCODERS)
    change, p = measured.pair(start, adapted)
    if p < LEVEL:
        effect = "helped" if change > 0 else "made it worse"
    else:
        effect = "may have helped" if change > 0 else "did not help"
    yield (
        f"Adapting {effect}: {label_of(start)} {means[start]:.3f}, {label_of(adapted)} {means[adapted]:.3f} "
        f"({with_p(p)}). {_the(encoder).capitalize()} is kept."
    )


def _the(system: str) -> str:
    return label_of(system) if System.parse(system).words else f"the {label_of(system)}"


def _reason(system: str, measured: Measured, expected: Mapping[str, float]) -> str:
    """The reason for this system, and not for the one with the highest score."""
    means = measured.means
    top = max(means, key=lambda name: means[name])
    if means[system] == means[top]:
        alike = sum(f"{mean:.3f}" == f"{means[top]:.3f}" for mean in means.values()) - 1
        if alike:
            others = "1 other has" if alike == 1 else f"{alike} others have"
            return f"Reason: none of the {len(means)} systems has a higher score; {others} the same."
        return f"Reason: it has the highest score of {len(means)} systems."
    change, p = measured.pair(system, top)
    has = f"Reason: {_the(top)} has {means[top]:.3f}, {change:.3f} more ({with_p(p)})"
    gain = expected[top] - expected[system]
    if gain > 0:
        return (
            f"{has}, but costs more: a gain of {gain:.3f} is expected on other questions, and {MARGIN:.3f} is asked for "
            "each step of cost."
        )
    few = f"{measured.n:,} questions" if measured.is_real else "generated questions"
    return (
        f"{has}, but {few} are not the only evidence: with what such systems had on other documents, it is expected to have "
        f"{-gain:.3f} less."
    )


def _few(system: str, measured: Measured) -> list[str]:
    if measured.n >= FEW_QUESTIONS:
        return []
    least = measured.detectable(system)
    if least < 0.0005:
        return [f"{measured.n:,} questions are few, and these hardly show a difference between systems."]
    return [
        f"{measured.n:,} questions are few: with them, differences from the recommended system below about {least:.3f} can "
        "hardly be told from chance."
    ]


def with_p(p: float) -> str:
    return "p < .001" if p < 0.001 else f"p = {p:.3f}".replace("0.", ".")


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
