"""What the measurements say: which system to use, and whether adapting helped. One sentence each, and the figures.

A system is preferred to a simpler one only if it is better by a margin that chance does not explain: paired
randomisation tests, Holm-corrected over the comparisons. Real questions count before generated ones.

Generated questions share their passages' words as real ones do not, so where there are no others, BM25 leads them by
more than it deserves: it is then named alone only if searching with the encoder besides costs much even there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qontext import api, log
from qontext.artifacts import open_artifact

NAMES = {
    "bm25": "BM25 (by words)",
    "start": "the encoder as it came",
    "adapted": "the adapted encoder",
    "hybrid-start": "BM25 and the encoder as it came",
    "hybrid": "BM25 and the adapted encoder",
}
MEASURE = "nDCG@10"
TOLERATED = 0.02
"""What BM25 together with the encoder may lose to BM25 alone on generated questions and still be preferred."""
FLATTERY = (
    "No real questions were given, so these figures come from generated ones about documents that were not trained on. "
    "Such questions flatter a model that was trained on their like, and BM25, whose words they share: trust the order "
    "of the systems less than usual, and bring labels if you can."
)


@dataclass(frozen=True)
class Verdict:
    """`system` is what to search with, `encoder` whose vectors to serve: 'start' or 'adapted'."""

    system: str
    encoder: str
    sentences: list[str]
    split: str
    scores: dict[str, dict[str, dict[str, float]]]
    differences: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(steps: Path, splits: list[str], systems: list[str]) -> Verdict:
    """Read the recipe's scores and compare its runs."""
    scores = {
        split: {
            name: dict(open_artifact(steps / f"score-{name}-{split}").summary["measures"]) for name in systems
        }
        for split in splits
    }
    split = "test" if "test" in splits else splits[0]
    verbosity, log.verbosity = log.verbosity, -1
    try:
        compared = api.compare(
            tuple(f"{name}={steps / f'{name}-{split}'}" for name in systems),
            qrels=str(steps / "holdout" / "measured"),
            split=split,
            measures=MEASURE,
            examples=0,
        )
    finally:
        log.verbosity = verbosity
    better = {(pair["a"], pair["b"]): (pair["difference"]["mean"], pair["p"]) for pair in compared["pairs"]}
    means = {name: scores[split][name][MEASURE] for name in systems}
    encoder, sentences = "start", []
    if "adapted" in systems:
        encoder, sentence = _helped(means, better)
        sentences.append(sentence)
    # Only one encoder is handed over: the choice is between it, BM25, and both.
    together = "hybrid" if encoder == "adapted" else "hybrid-start"
    system = _preferred(["bm25", encoder, together], means, better)
    if split == "generated" and system == "bm25" and means[together] >= means["bm25"] - TOLERATED:
        system = together
    sentences.append(
        f"Search with {NAMES[system]}: {MEASURE} {means[system]:.3f}" + _beside(system, means) + "."
    )
    if split == "generated":
        sentences.append(FLATTERY)
    return Verdict(system, encoder, sentences, split, scores, compared["pairs"])


def _preferred(
    systems: list[str], means: dict[str, float], better: dict[tuple[str, str], tuple[float, float]]
) -> str:
    """The first of the systems, which stand from simple to complex, that the best does not beat beyond chance."""
    best = max(systems, key=lambda name: means[name])
    return next(name for name in systems if name == best or _p(name, best, better) >= 0.05)


def _helped(means: dict[str, float], better: dict[tuple[str, str], tuple[float, float]]) -> tuple[str, str]:
    change, p = means["adapted"] - means["start"], _p("start", "adapted", better)
    figures = f"{MEASURE} {means['start']:.3f} → {means['adapted']:.3f}, p {'< .001' if p < 0.001 else f'= {p:.3f}'}"
    if change > 0 and p < 0.05:
        return "adapted", f"Adapting helped: {figures}."
    if change < 0 and p < 0.05:
        return "start", f"Adapting made the encoder worse ({figures}), so it is kept as it came."
    return (
        "start",
        f"Adapting made no difference that can be told from chance ({figures}): the encoder is kept as it came.",
    )


def _p(a: str, b: str, better: dict[tuple[str, str], tuple[float, float]]) -> float:
    return better[a, b][1] if (a, b) in better else better[b, a][1]


def _beside(system: str, means: dict[str, float]) -> str:
    others = [
        f"{NAMES[name]} {means[name]:.3f}" for name in ("bm25", "start") if name != system and name in means
    ]
    return f" ({', '.join(others)})" if others else ""
