"""Differences of the controls, as arms come and whitened, and those that were registered before their first run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from clusters import clusters_of
from differences import precise
from study import MINED, NEIGHBORS
from systems import MAIN, TITLES, labeled, values_of

from qontext.evaluation.comparison import format_p, holm
from qontext.evaluation.tables import Cell, Row, Table

PAIRS = (
    ("none", "mlm"), ("none", "cocondenser-passage"), ("none", "cocondenser-query"), ("none", "contrastive-query"),
    ("cocondenser-passage", "cocondenser-query"), ("contrastive-passage", "contrastive-query"),
    ("cocondenser-passage", "contrastive-passage"), ("cocondenser-query", "contrastive-query"),
    ("mlm", "cocondenser-query"), ("mlm", "condenser"), ("mlm", "cot-mae-query"), ("cot-mae-passage", "cot-mae-query"),
    ("words-64", "cocondenser-query"), ("words-64", "contrastive-query"),
)  # fmt: skip
"""(baseline, candidate) of the controls."""


def differences_table(cells: Sequence[dict[str, Any]], place: str = "controls/fairytaleqa") -> Table:
    """Differences of arms as they come, and of both whitened, as random vectors of words always are."""
    table, values = Table(["baseline", "candidate", "as they come", "whitened"]), values_of(cells)
    for pair in PAIRS:
        shown = []
        for end in ("", "+whitened"):
            own = [values.get((place, f"0{'' if arm.startswith('words') else end}", arm), {}) for arm in pair]
            if (seeds := own[0].keys() & own[1].keys()) and (end or not pair[0].startswith("words")):
                a, b = (np.mean([of[seed][MAIN] for seed in sorted(seeds)], axis=0) for of in own)
                d = precise(a, b, clusters_of(place, len(a)))
                shown.append(f"{100 * d.mean:+.1f} ({100 * d.low:.1f} … {100 * d.high:.1f})")
            else:
                shown.append("")
        if any(shown):
            table.rows.append(Row((*(Cell(TITLES[arm], is_text=True) for arm in pair), *map(Cell, shown))))
    return table


@dataclass(frozen=True)
class Registered:
    """A difference that was registered before its first run: two arms, each with a number of labels, in one measure."""

    baseline: str
    candidate: str
    labels: tuple[str, str]
    measure: str = MAIN

    @property
    def titles(self) -> list[str]:
        ends = [f" ({labeled(labels)})" if self.baseline == self.candidate else "" for labels in self.labels]
        return [TITLES[arm] + end for arm, end in zip((self.baseline, self.candidate), ends)]


WHITENED, ONE, TWO = "0+whitened", "1000", f"1000{MINED}"
REGISTERED = {
    "relevance": (
        Registered("contrastive-lower", "contrastive-upper", (WHITENED, WHITENED)),
        Registered("contrastive-passage", "contrastive-near", (WHITENED, WHITENED)),
    ),
    "stages": (
        Registered("contrastive-passage", "contrastive-query", (TWO, TWO)),
        Registered("contrastive-passage", "contrastive-query", (ONE, ONE)),
        Registered("contrastive-query", "contrastive-query", (ONE, TWO)),
        Registered("none", "condenser", (ONE, ONE), NEIGHBORS),
        Registered("condenser", "cocondenser-passage", (ONE, ONE), NEIGHBORS),
    ),
}
"""Scale → its primary comparisons."""
BESIDE = {
    "relevance": (),
    "stages": (
        Registered("contrastive-passage", "contrastive-query", (TWO, TWO), "R@100"),
        Registered("contrastive-passage", "contrastive-query", (ONE, ONE), "R@100"),
    ),
}
"""Scale → what is shown beside them, without a verdict."""
SEEDS = 3
"""They must agree for a verdict."""


def registered_table(cells: Sequence[dict[str, Any]], scale: str, data: str = "fairytaleqa") -> Table:
    """The registered differences of a scale that are measured. A verdict needs three seeds with one sign."""
    values, rows = values_of(cells), []
    for one in (*REGISTERED[scale], *BESIDE[scale]):
        arms = zip(one.labels, (one.baseline, one.candidate))
        own = [values.get((f"{scale}/{data}", labels, arm), {}) for labels, arm in arms]
        if seeds := sorted(own[0].keys() & own[1].keys()):
            each = [own[1][seed][one.measure] - own[0][seed][one.measure] for seed in seeds]
            change = np.mean(each, axis=0)
            d = precise(np.zeros_like(change), change, clusters_of(f"{scale}/{data}", len(change)))
            rows.append((one, [100 * float(by_seed.mean()) for by_seed in each], d))
    tested = [d.p for one, _, d in rows if one in REGISTERED[scale]]
    corrected = holm([*tested, *[1.0] * (len(REGISTERED[scale]) - len(tested))])
    table = Table(["baseline", "candidate", "measure", "of each seed", "difference", "95 %", "p", "verdict"])
    for number, (one, each, d) in enumerate(rows):
        agree = len(each) >= SEEDS and len(set(np.sign(each))) == 1
        better = f"the {'candidate' if d.mean > 0 else 'baseline'} is better"
        word = better if agree and corrected[number] < 0.05 else "open"
        p, word = (format_p(corrected[number]), word) if number < len(tested) else ("–", "not registered")
        texts = [Cell(text, is_text=True) for text in (*one.titles, measured(one))]
        numbers = [", ".join(f"{by_seed:+.1f}" for by_seed in each), f"{100 * d.mean:+.1f}"]
        numbers += [f"{100 * d.low:+.1f} … {100 * d.high:+.1f}", p]
        table.rows.append(Row((*texts, *map(Cell, numbers), Cell(word, is_text=True))))
    return table


def measured(one: Registered) -> str:
    """The measure of a registered difference, and with how many labels, if both have as many."""
    return one.measure if len(set(one.labels)) > 1 else f"{one.measure}, {labeled(one.labels[0])}"
