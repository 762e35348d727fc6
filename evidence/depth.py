"""The tables and curves of the study at depth: docs/results/depth.md.

Its sets count equally, however many questions they have; its primary comparisons have the words that were registered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from clusters import clusters_of
from differences import over_sets
from study import ARMS, MINED, PILOT, SCALES
from systems import MAIN, TITLES, Key, amounts_of, labeled, place_of, systems_of, values_of

from qontext.evaluation.comparison import Difference, SystemScores, format_p, holm
from qontext.evaluation.tables import Cell, Row, Table

PRIMARY = (("cot-mae-passage", "cot-mae-query"), ("cocondenser-passage", "cocondenser-query"))
"""(passages, keyphrases): each is compared as retriever 1 and as retriever 2."""
MARGIN = 0.005
LEVEL = 0.9875
"""Of intervals: 95 % over the four primary comparisons together."""
SEEDS = (1, 2)
"""Both are run before a verdict."""
SECONDARY = (
    ("cot-mae-rand", "cot-mae-near"),
    ("cot-mae-lower", "cot-mae-upper"),
    ("contrastive-passage", "contrastive-near"),
    ("contrastive-lower", "contrastive-upper"),
    ("cocondenser-span", "cocondenser-query"),
    ("cot-mae-mixed", "cot-mae-query"),
    ("cot-mae-query", "cot-mae-query-autoregressive"),
    ("cot-mae-forward", "cot-mae-passage"),
    ("cot-mae-forward", "cot-mae-query"),
    ("bow-query", "cot-mae-query"),
    ("cot-mae-query", "cot-mae-causal"),
    ("cocondenser-query", "cocondenser-causal"),
    ("mlm", "cot-mae-passage"),
    ("mlm", "cot-mae-query"),
    ("retromae", "cot-mae-query"),
    ("contrastive-passage", "contrastive-query"),
    ("contrastive-passage", "cocondenser-passage"),
    ("contrastive-query", "cocondenser-query"),
    ("cot-mae-query", "cot-mae-then-contrastive"),
    ("contrastive-query", "cot-mae-then-contrastive"),
    ("cocondenser-no-mlm", "cocondenser-passage"),
)
"""(baseline, candidate)."""
ZERO_SHOT = "nDCG@10"
"""The measure on sets that no arm was trained on."""


@dataclass(frozen=True)
class Comparison:
    """Two arms as one of the retrievers, over the seeds that both have on all sets; without any, there is no difference."""

    baseline: str
    candidate: str
    retriever: str
    seeds: tuple[int, ...]
    difference: Difference | None
    by_seed: tuple[float, ...] = ()
    p: float = 1.0
    """Corrected over all comparisons made together, those not measured yet included."""

    @property
    def verdict(self) -> str:
        """The registered word for the interval."""
        if self.difference is None or not set(SEEDS) <= set(self.seeds):
            return "not measured yet"
        low, high = self.difference.low, self.difference.high
        if low > MARGIN:
            return "reproduced"
        if high < -MARGIN:
            return "contradicted"
        return "no effect that matters" if low > -MARGIN and high < MARGIN else "inconclusive"


def retrievers(scale: str) -> dict[str, str]:
    """Retriever → its key of scores."""
    labels = str(max(SCALES[scale].labels))
    return {"1": labels, "2": f"{labels}{MINED}"}


def sets_of(scale: str, *, trained: bool) -> list[str]:
    """The places of a scale's sets: those whose labels train it, or those without any training."""
    own = SCALES[scale]
    return [f"{scale}/joint to {name}" for name in own.targets if (name in own.pool) is trained]


def primary(cells: Sequence[dict[str, Any]], scale: str = "depth") -> list[Comparison]:
    """Keyphrases − passages, MRR@10 averaged over the sets."""
    return compared(cells, scale, PRIMARY)


def compared(
    cells: Sequence[dict[str, Any]], scale: str, pairs: Sequence[tuple[str, str]], level: float = LEVEL
) -> list[Comparison]:
    own = [cell for cell in cells if cell["scale"] == scale]
    values, places, found = values_of(own), sets_of(scale, trained=True), []
    for pair in pairs:
        compared_cells = [cell for cell in own if cell["arm"] in pair and place_of(cell) in places]
        if len(starts := {cell["start"] for cell in compared_cells}) > 1:
            raise SystemExit(f"{' and '.join(pair)}: cells of {len(starts)} starts cannot be compared")
        for retriever, labels in retrievers(scale).items():
            columns = [values.get((place, labels, arm), {}) for place in places for arm in pair]
            seeds = tuple(sorted(set.intersection(*map(set, columns))))
            means = [np.mean([of[seed][MAIN] for seed in seeds], axis=0) for of in columns] if seeds else []
            both = [
                (a, b, clusters_of(place, len(a))) for place, a, b in zip(places, means[::2], means[1::2])
            ]
            difference = over_sets(both, level) if both else None
            by_seed = tuple(
                float(
                    np.mean(
                        [
                            b[seed][MAIN].mean() - a[seed][MAIN].mean()
                            for a, b in zip(columns[::2], columns[1::2])
                        ]
                    )
                )
                for seed in seeds
            )
            found.append(Comparison(*pair, retriever, seeds, difference, by_seed))
    corrected = holm([one.difference.p if one.difference else 1.0 for one in found])
    return [replace(one, p=p) for one, p in zip(found, corrected)]


def tables(cells: Sequence[dict[str, Any]], scale: str = "depth") -> dict[str, Table]:
    """All tables of a scale by name; without rows where nothing is measured."""
    systems = systems_of([cell for cell in cells if cell["scale"] == scale])
    trained, others = (sets_of(scale, trained=is_trained) for is_trained in (True, False))
    name = scale.replace("-", "_")
    first = compared_table(primary(cells, scale))
    return {
        f"{name}_primary": first,
        f"{name}_arms": means_table(systems, trained, MAIN),
        f"{name}_sets": sets_table(systems, trained, scale),
        f"{name}_zero_shot": means_table(systems, others, ZERO_SHOT),
        f"{name}_secondary": compared_table(compared(cells, scale, SECONDARY, 0.95), has_verdict=False),
        f"{name}_rates": rates_table(cells, scale),
    }


def compared_table(comparisons: Sequence[Comparison], *, has_verdict: bool = True) -> Table:
    """Differences in points; those not measured yet are left out."""
    columns = [
        "baseline",
        "candidate",
        "retriever",
        "of each seed",
        "difference",
        "98.75 %" if has_verdict else "95 %",
        "p",
    ]
    table = Table([*columns, "verdict"] if has_verdict else columns)
    for one in comparisons:
        if d := one.difference:
            arms = [Cell(TITLES[arm], is_text=True) for arm in (one.baseline, one.candidate)]
            each = ", ".join(f"{100 * change:+.2f}" for change in one.by_seed)
            numbers = [one.retriever, each, f"{100 * d.mean:+.2f}"]
            numbers += [f"{100 * d.low:+.2f} … {100 * d.high:+.2f}", format_p(one.p)]
            last = [Cell(one.verdict, is_text=True)] if has_verdict else []
            table.rows.append(Row((*arms, *map(Cell, numbers), *last)))
    return table


def means_table(systems: Mapping[Key, SystemScores], places: Sequence[str], measure: str) -> Table:
    """A row per arm: its means over the sets, with each kind of labels and search. All sets or none."""
    amounts = amounts_of(dict(systems), places[0]) if places else []
    table = Table(["pre-training", "seeds", *map(labeled, amounts)])
    for arm in ARMS:
        means = [macro(systems, places, labels, arm.name, measure) for labels in amounts]
        if any(mean is not None for mean in means):
            seeds = min(len(systems[key].seeds) for key in systems if key[2] == arm.name)
            table.rows.append(
                Row((Cell(arm.title, is_text=True), Cell(str(seeds)), *(Cell(shown(mean)) for mean in means)))
            )
    return table


def sets_table(systems: Mapping[Key, SystemScores], places: Sequence[str], scale: str) -> Table:
    """A row per arm: MRR@10 on each set, without labels and of both retrievers."""
    amounts = {"no labels": "0"} | {f"retriever {name}": key for name, key in retrievers(scale).items()}
    columns = [(place, name) for place in places for name in amounts]
    table = Table(["pre-training", *(f"{place.rpartition(' ')[2]}, {name}" for place, name in columns)])
    for arm in ARMS:
        means = [macro(systems, [place], amounts[name], arm.name, MAIN) for place, name in columns]
        if any(mean is not None for mean in means):
            table.rows.append(Row((Cell(arm.title, is_text=True), *(Cell(shown(mean)) for mean in means))))
    return table


def rates_table(cells: Sequence[dict[str, Any]], scale: str) -> Table:
    """A row per arm that pilots trained: MRR@10 on development questions with each learning rate."""
    rates = [f"{rate:g}" for rate in SCALES[scale].rates]
    table, reached = Table(["pre-training", *rates]), dict[tuple[str, str], float]()
    for cell in cells:
        if cell["scale"] == f"{scale}{PILOT}":
            arm, _, rate = cell["arm"].rpartition("-lr")
            (labels,) = (key for key in cell["scores"] if key != "0" and "+" not in key)
            reached[arm, rate] = float(np.mean(cell["scores"][labels][MAIN]))
    for arm in (arm.name for arm in ARMS if any(name == arm.name for name, _ in reached)):
        texts = [shown(reached.get((arm, rate))) for rate in rates]
        table.rows.append(Row((Cell(TITLES[arm], is_text=True), *map(Cell, texts))))
    return table


def macro(
    systems: Mapping[Key, SystemScores], places: Sequence[str], labels: str, arm: str, measure: str
) -> float | None:
    """The mean over sets; None if one of them is not measured."""
    found = [systems.get((place, labels, arm)) for place in places]
    means = [system.mean(measure)[0] for system in found if system]
    return float(np.mean(means)) if means and len(means) == len(places) else None


def shown(mean: float | None) -> str:
    return "–" if mean is None else f"{mean:.3f}".removeprefix("0")
