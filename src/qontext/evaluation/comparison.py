"""Several systems on the same queries: means over seeds, differences of every pair and their significance, wins by query.

The randomization test (Fisher; Smucker et al. 2007 for retrieval) estimates how often a mean difference at
least this large occurs if each query's two scores are swapped at random. It makes no assumptions about the
distribution of scores. Intervals are those of the bootstrap; p values of several pairs are corrected by Holm's procedure.
"""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qontext.data.collection import Qrels, read_passages, read_queries
from qontext.data.runs import Run
from qontext.evaluation.measures import Floats
from qontext.evaluation.tables import Cell, Row, Table
from qontext.frame import html

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


def with_spread(mean: float, spread: float | None) -> str:
    return f"{mean:.4f}" if spread is None else f"{mean:.4f} ± {spread:.4f}"


def format_p(p: float) -> str:
    return "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 1 else "1"


@dataclass(frozen=True, eq=False)
class SystemScores:
    """A system's values, one dictionary (measure → [Q]) per training seed."""

    name: str
    seeds: Sequence[dict[str, Floats]]

    def per_query(self, measure: str) -> Floats:
        """[Q] the mean over seeds, on which pairs of systems are tested."""
        return np.mean([seed[measure] for seed in self.seeds], axis=0)  # type: ignore[no-any-return]

    def mean(self, measure: str) -> tuple[float, float | None]:
        """The mean and, with several seeds, its standard deviation over them."""
        return mean_and_spread([float(seed[measure].mean()) for seed in self.seeds])

    def as_json(self, measures: Sequence[str]) -> dict[str, Any]:
        """Means and standard deviations over seeds."""
        means = {measure: self.mean(measure) for measure in measures}
        return {
            "system": self.name,
            "seeds": len(self.seeds),
            "measures": {measure: mean for measure, (mean, _) in means.items()},
            "spread": {measure: sd for measure, (_, sd) in means.items() if sd is not None},
        }


@dataclass(frozen=True)
class Pair:
    """The difference of system `b` from `a` on a measure; `p` is corrected for all pairs compared on it."""

    measure: str
    a: str
    b: str
    difference: Difference
    p: float

    def is_significant(self, level: float = 0.05) -> bool:
        return self.p < level

    def row(self) -> dict[str, str]:
        """The pair as a row of a table."""
        change = self.difference
        return {
            "measure": self.measure,
            "from → to": f"{self.a} → {self.b}",
            "difference": f"{change.mean:+.4f}",
            "95 % interval": f"{change.low:+.4f} … {change.high:+.4f}",
            "p": format_p(self.p) + (" *" if self.is_significant() else ""),
            "wins/losses/ties": f"{change.wins}/{change.losses}/{change.ties}",
        }

    def __repr__(self) -> str:
        return f"Pair({self.measure}: {self.a} → {self.b} {self.difference.mean:+.4f}, p {format_p(self.p)})"

    def _repr_html_(self) -> str:
        return html.table([self.row()])


def compare_systems(systems: Sequence[SystemScores], measures: Sequence[str]) -> list[Pair]:
    """Every pair of systems on every measure. The p values of a measure are corrected together by Holm's procedure, so
    they do not depend on which other measures are shown."""
    pairs = []
    for measure in measures:
        rows = []
        for a, b in itertools.combinations(systems, 2):
            rows.append((a.name, b.name, difference(a.per_query(measure), b.per_query(measure))))
        corrected = holm([diff.p for _, _, diff in rows])
        pairs += [Pair(measure, a, b, diff, p) for (a, b, diff), p in zip(rows, corrected)]
    return pairs


def marks(systems: Sequence[SystemScores], pairs: Sequence[Pair], measure: str) -> dict[str, str]:
    """For each system, the letters of the systems that it beats significantly, as in tables of papers."""
    letters = {system.name: chr(ord("a") + i % 26) for i, system in enumerate(systems)}
    beaten: dict[str, list[str]] = {system.name: [] for system in systems}
    for pair in pairs:
        if pair.measure == measure and pair.is_significant():
            winner, loser = (pair.b, pair.a) if pair.difference.mean > 0 else (pair.a, pair.b)
            beaten[winner].append(letters[loser])
    return {name: "".join(sorted(losers)) for name, losers in beaten.items()}


EXAMPLES, SHOWN = 5, 160
"""Queries with the largest gains, and with the largest losses, that are shown; characters of a passage in a table."""
Tops = Mapping[str, tuple[str, bool]]
"""query → its first passage, and whether that is judged relevant."""


def tops(run: Run, qrels: Qrels, relevant: int) -> dict[str, tuple[str, bool]]:
    """query → its first passage, and whether that is judged relevant. Ties are broken as in the measures."""
    found = {}
    for q, query in enumerate(run.queries):
        passages, scores = run.rows(q)
        with np.errstate(over="ignore"):
            single = scores.astype(np.float32)
        top = max(passages[: int((single == single[0]).sum())])
        found[query] = (top, qrels.get(query, {}).get(top, 0) >= relevant)
    return found


@dataclass(frozen=True)
class First:
    """A system's value for a query, its first passage with its text, and its relevance."""

    system: str
    value: float
    passage: str | None
    right: bool
    text: str | None = None


@dataclass(frozen=True)
class QueryExample:
    """A query on which two systems differ, and the first passage of every system."""

    query: str
    text: str | None
    difference: float
    first: Sequence[First]


def examples_of(
    queries: Sequence[str],
    values: Mapping[str, Floats],
    firsts: Mapping[str, Tops],
    data: str | None = None,
) -> list[QueryExample]:
    """The queries that gain most from the first to the second of the systems, then those that lose most, ties by query id;
    `values` and `firsts` are those of each system, `data` is a labeled folder with the texts."""
    a, b, *_ = values
    delta = values[b] - values[a]
    order = sorted(range(len(queries)), key=lambda i: (-abs(delta[i]), queries[i]))
    chosen = [i for i in order if delta[i] > 0][:EXAMPLES] + [i for i in order if delta[i] < 0][:EXAMPLES]
    ids = {firsts[name].get(queries[i], ("", False))[0] for i in chosen for name in values}
    texts, asked = dict[str | None, str](), dict[str, str]()
    if data is not None and chosen:
        asked = read_queries(data)
        found = (p for p in read_passages(data) if p.id in ids)
        texts |= {p.id: " — ".join(filter(None, (p.title, p.text))) for p in found}
    examples = []
    for i in chosen:
        of = {name: firsts[name].get(queries[i], (None, False)) for name in values}
        first = [
            First(name, float(values[name][i]), top, right, texts.get(top))
            for name, (top, right) in of.items()
        ]
        examples.append(QueryExample(queries[i], asked.get(queries[i]), float(delta[i]), first))
    return examples


def example_rows(examples: Sequence[QueryExample], measure: str) -> list[dict[str, Any]]:
    """A row for each query and system: its value, and its first passage, marked if relevant. Passages that look alike are
    told apart by their ids."""
    shown = {
        first.passage: textwrap.shorten(first.text or first.passage or "no results", SHOWN, placeholder=" …")
        for example in examples
        for first in example.first
    }
    repeated = Counter(shown.values())
    return [
        {
            "query": (example.text or example.query) if number == 0 else "",
            "system": first.system,
            measure: f"{first.value:.3f}",
            "": "✓" if first.right else "✗",
            "first_passage": f"{first.passage}: " * (repeated[shown[first.passage]] > 1)
            + shown[first.passage],
        }
        for example in examples
        for number, first in enumerate(example.first)
    ]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The differences of every two systems on every measure, as `Pair`s, with the systems themselves.

    The largest gains and losses between the first two systems are examples: each has the first passage of every system.
    """

    systems: Sequence[SystemScores]
    pairs: Sequence[Pair]
    queries: Sequence[str]
    firsts: Sequence[Tops]
    benchmark: str | None = None
    data: str | None = None
    """The labeled folder with the texts of the examples."""

    @property
    def measures(self) -> list[str]:
        return list(self.systems[0].seeds[0])

    @property
    def means(self) -> dict[str, dict[str, float]]:
        """system → measure → mean."""
        return {system.name: {m: system.mean(m)[0] for m in self.measures} for system in self.systems}

    @cached_property
    def examples(self) -> list[QueryExample]:
        values = {s.name: s.per_query(self.measures[0]) for s in self.systems}
        firsts = dict(zip(values, self.firsts))
        return examples_of(self.queries, values, firsts, self.data)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)

    def __getitem__(self, index: int) -> Pair:
        return self.pairs[index]

    def mean_rows(self) -> list[dict[str, str]]:
        """The means as rows of a table, with standard deviations over seeds."""
        return [
            {"system": one.name} | {m: with_spread(*one.mean(m)) for m in self.measures}
            for one in self.systems
        ]

    def table(self) -> Table:
        """The means × 100, the best of each measure, and letters for the systems that each one beats significantly."""
        return means_table(self.systems, self.pairs, self.measures, f"{len(self.queries):,} queries, × 100")

    def as_json(self) -> dict[str, Any]:
        """The result of `qontext compare --json`."""
        return {
            "queries": len(self.queries),
            "benchmark": self.benchmark,
            "systems": [system.as_json(self.measures) for system in self.systems],
            "pairs": [asdict(pair) for pair in self.pairs],
            "examples": [asdict(example) for example in self.examples],
        }

    def __repr__(self) -> str:
        return (
            f"Comparison of {len(self.systems)} systems on {len(self.queries):,} queries: {list(self.pairs)}"
        )

    def _repr_html_(self) -> str:
        return html.table(self.mean_rows(), "Means") + html.table(
            [pair.row() for pair in self.pairs], "Differences"
        )


def means_table(
    systems: Sequence[SystemScores], pairs: Sequence[Pair], measures: Sequence[str], caption: str
) -> Table:
    """A row for each system: its letter, its means × 100, and the letters of the systems that it beats."""
    best = {m: max(round(100 * one.mean(m)[0], 1) for one in systems) for m in measures}
    table = Table(["System", *measures], caption=caption)
    for number, system in enumerate(systems):
        cells = [Cell(f"{chr(ord('a') + number % 26)}  {system.name}" if len(systems) > 1 else system.name)]
        for measure in measures:
            mean, spread = system.mean(measure)
            text = f"{100 * mean:.1f}" + (f" ± {100 * spread:.1f}" if spread is not None else "")
            is_best = round(100 * mean, 1) == best[measure] and not measure.startswith("Judged")
            cells.append(Cell(text, marks(systems, pairs, measure)[system.name], is_best))
        table.rows.append(Row(tuple(cells)))
    if len(systems) > 1:
        table.notes.append(
            "A superscript letter: significantly better than that system (paired randomization test, Holm's "
            "correction over all pairs of systems, p < .05)."
        )
    if any(len(system.seeds) > 1 for system in systems):
        table.notes.append(
            "± is the standard deviation over training seeds; tests use each query's mean over them."
        )
    return table
