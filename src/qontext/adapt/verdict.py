"""The verdict: which system to use, and whether adapting helped. A system is preferred to a simpler one only
if it is significantly better: paired randomization tests, Holm-corrected over the comparisons. Real questions
take precedence over generated ones. Generated questions share more words with their passages than real ones,
which favors BM25: without real questions, BM25 alone is only recommended if adding the encoder is much worse.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qontext import api
from qontext.frame import log
from qontext.frame.artifacts import open_artifact
from qontext.retrieve.searcher import SYSTEMS as NAMES

MEASURE = "nDCG@10"
LEVEL = 0.05
"""Significance level."""
TOLERATED = 0.02
"""Maximum loss of BM25 with the encoder versus BM25 alone on generated questions to be preferred."""
LABELS = {
    "bm25": "BM25",
    "start": "Original encoder",
    "hybrid-start": "BM25 + original encoder",
    "tokens-start": "BM25 + original encoder + its tokens",
    "adapted": "Adapted encoder",
    "hybrid": "BM25 + adapted encoder",
    "tokens": "BM25 + adapted encoder + its tokens",
}
"""System → its name in tables and figures; baselines first."""
FLATTERY = (
    "There are no real questions, so these results are for generated ones about documents that were not trained on. "
    "Such questions favor a model that was trained on similar ones, and BM25, because they share words with their "
    "passages: the order of the systems is less reliable. Provide labels if you can."
)

FAVORS_BM25 = "on generated questions, which favor BM25,"
USUALLY = "comparing the tokens, too, usually helps with real questions; on generated ones"
WRITTEN = (
    "There are no real questions, so these results are for questions that a language model wrote about documents that "
    "were not trained on. The order of the systems may differ from that on real questions. Provide labels if you can."
)


@dataclass(frozen=True)
class Verdict:
    """`system` is the recommended one, `encoder` is 'start' or 'adapted'. `split` is the deciding one.
    `scores` and `queries` (their number) are by split; `differences` has all pairs on all splits.
    """

    system: str
    encoder: str
    sentences: list[str]
    split: str
    scores: dict[str, dict[str, dict[str, float]]]
    queries: dict[str, int]
    differences: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(steps: Path, splits: list[str], systems: list[str]) -> Verdict:
    """Read the recipe's scores and compare the runs."""
    scores = {
        split: {
            name: open_artifact(steps / f"score-{name}-{split}").summary.take("measures", dict[str, float])
            for name in systems
        }
        for split in splits
    }
    split = "test" if "test" in splits else splits[0]
    compared = {name: _compared(steps, name, systems) for name in splits}
    counts = {name: int(result["queries"]) for name, result in compared.items()}
    pairs = compared[split]["pairs"]
    better = {(pair["a"], pair["b"]): (pair["difference"]["mean"], pair["p"]) for pair in pairs}
    means = {name: scores[split][name][MEASURE] for name in systems}
    encoder, sentences = "start", []
    if "adapted" in systems:
        encoder, sentence = _helped(means, better, counts[split])
        sentences.append(sentence)
    # Only one encoder is kept: the choice is between it, BM25, both, and both with its tokens.
    together = "hybrid" if encoder == "adapted" else "hybrid-start"
    by_tokens = together.replace("hybrid", "tokens")
    candidates = ["bm25", encoder, together, *([by_tokens] if by_tokens in systems else [])]
    system = _preferred(candidates, means, better)
    because = _because(system, candidates, means, better, counts[split])
    if split == "generated":
        system, because = _with_generated(system, because, together, means, better, counts[split])
    sentences += [
        f"Search with {NAMES[system]}: {MEASURE} {means[system]:.3f}" + _beside(system, means) + ".",
        because,
    ]
    if split == "generated":
        is_written = "question_model" in open_artifact(steps / "holdout").inputs
        sentences.append(WRITTEN if is_written else FLATTERY)
    differences = [{"split": name, **pair} for name, result in compared.items() for pair in result["pairs"]]
    return Verdict(system, encoder, sentences, split, scores, counts, differences)


def _compared(steps: Path, split: str, systems: list[str]) -> dict[str, Any]:
    """The paired tests of all systems on one split."""
    with log.warnings_only():
        result: dict[str, Any] = api.compare(
            tuple(f"{name}={steps / f'{name}-{split}'}" for name in systems),
            qrels=str(steps / "holdout" / "measured"),
            split=split,
            measures=MEASURE,
            examples=0,
        )
    return result


def _preferred(
    systems: list[str], means: dict[str, float], better: dict[tuple[str, str], tuple[float, float]]
) -> str:
    """The first system (from simple to complex) that the best one does not significantly beat."""
    best = max(systems, key=lambda name: means[name])
    return next(name for name in systems if name == best or _p(name, best, better) >= LEVEL)


def _because(
    system: str,
    candidates: list[str],
    means: dict[str, float],
    better: dict[tuple[str, str], tuple[float, float]],
    n: int,
) -> str:
    """The reason for the choice of `_preferred`, with the compared values."""
    best = max(candidates, key=lambda name: means[name])
    simpler = candidates[: candidates.index(system)]
    if system != best:
        why = (
            f"Reason: it is the simplest system that the best one, {NAMES[best]}, does not significantly beat "
            f"({_figures(system, best, better, n)})"
        )
    elif simpler:
        beaten = "; ".join(f"{NAMES[name]}: {_figures(name, system, better, n)}" for name in simpler)
        why = f"Reason: it scores highest, significantly higher than every simpler system ({beaten})"
    else:
        second = max(candidates[1:], key=lambda name: means[name])
        beaten = f"{NAMES[second]}: {_figures(system, second, better, n)}"
        why = f"Reason: it scores highest and is the simplest (next: {beaten})"
    top = max(means, key=lambda name: means[name])
    if top not in candidates:
        why += f"; {NAMES[top]} ({means[top]:.3f}) is not a candidate, because its encoder is not kept"
    return why + "."


def _with_generated(
    system: str,
    because: str,
    together: str,
    means: dict[str, float],
    better: dict[tuple[str, str], tuple[float, float]],
    n: int,
) -> tuple[str, str]:
    """The choice, with its reason, if there are no real questions: BM25 is complemented by the encoder, and both by its
    tokens, unless that is much worse."""
    by_tokens = together.replace("hybrid", "tokens")
    for simpler, name, why in ((("bm25",), together, FAVORS_BM25), (("bm25", together), by_tokens, USUALLY)):
        if system in simpler and means.get(name, -1) >= means[system] - TOLERATED:
            than = "BM25 alone" if system == "bm25" else NAMES[system]
            because = (
                f"Reason: {why} it differs from {than} by {means[name] - means[system]:+.3f}, and a loss of up to "
                f"{TOLERATED:.3f} is accepted ({_figures(system, name, better, n)})."
            )
            system = name
    return system, because


def _figures(a: str, b: str, better: dict[tuple[str, str], tuple[float, float]], n: int) -> str:
    """The difference from a to b with its p."""
    change = better[a, b][0] if (a, b) in better else -better[b, a][0]
    return f"{change:+.3f}, {_with_p(_p(a, b, better))}, n = {n:,}"


def _with_p(p: float) -> str:
    return "p < .001" if p < 0.001 else f"p = {p:.3f}".replace("0.", ".")


def _helped(
    means: dict[str, float], better: dict[tuple[str, str], tuple[float, float]], n: int
) -> tuple[str, str]:
    change, p = means["adapted"] - means["start"], _p("start", "adapted", better)
    figures = f"{MEASURE} {means['start']:.3f} → {means['adapted']:.3f}, {_with_p(p)}, n = {n:,}"
    if change > 0 and p < LEVEL:
        return "adapted", f"Adapting helped: {figures}; the rule is p < .05."
    if change < 0 and p < LEVEL:
        return "start", f"Adapting made the encoder worse ({figures}), so the original one is kept."
    return (
        "start",
        f"Adapting made no significant difference ({figures}; the rule is p < .05): "
        "the original encoder is kept.",
    )


def _p(a: str, b: str, better: dict[tuple[str, str], tuple[float, float]]) -> float:
    return better[a, b][1] if (a, b) in better else better[b, a][1]


def _beside(system: str, means: dict[str, float]) -> str:
    others = [
        f"{NAMES[name]} {means[name]:.3f}" for name in ("bm25", "start") if name != system and name in means
    ]
    return f" ({', '.join(others)})" if others else ""
