"""Differences of the controls, as arms come and whitened, and the registered ones of passages of different relevance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from clusters import clusters_of
from differences import precise
from systems import MAIN, TITLES, values_of

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


RELEVANCE = (("contrastive-lower", "contrastive-upper"), ("contrastive-passage", "contrastive-near"))
"""(less relevant, more relevant) passages as contexts."""
SEEDS = 3
"""They must agree for a verdict."""


def relevance_table(cells: Sequence[dict[str, Any]], place: str = "relevance/fairytaleqa") -> Table:
    """The mechanism in miniature: differences of whitened vectors. A verdict needs three seeds with one sign."""
    values, rows = values_of(cells), []
    for pair in RELEVANCE:
        own = [values.get((place, "0+whitened", arm), {}) for arm in pair]
        if seeds := sorted(own[0].keys() & own[1].keys()):
            each = [own[1][seed][MAIN] - own[0][seed][MAIN] for seed in seeds]
            change = np.mean(each, axis=0)
            d = precise(np.zeros_like(change), change, clusters_of(place, len(change)))
            rows.append((pair, [100 * float(one.mean()) for one in each], d))
    corrected = holm([*(d.p for *_, d in rows), *[1.0] * (len(RELEVANCE) - len(rows))])
    table = Table(["baseline", "candidate", "of each seed", "difference", "95 %", "p", "verdict"])
    for (pair, each, d), p in zip(rows, corrected):
        agree = len(each) >= SEEDS and len(set(np.sign(each))) == 1
        better = "more relevant is better" if d.mean > 0 else "less relevant is better"
        texts = [Cell(TITLES[arm], is_text=True) for arm in pair]
        numbers = [", ".join(f"{one:+.1f}" for one in each), f"{100 * d.mean:+.1f}"]
        numbers += [f"{100 * d.low:+.1f} … {100 * d.high:+.1f}", format_p(p)]
        word = better if agree and p < 0.05 else "open"
        table.rows.append(Row((*texts, *map(Cell, numbers), Cell(word, is_text=True))))
    return table
