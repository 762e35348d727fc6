"""Several systems side by side: their means and differences, and their first passages for the queries on which two of them
differ most."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np

from qontext.data.collection import Qrels
from qontext.data.runs import Run
from qontext.evaluation.comparison import Pair, SystemScores, compare_systems, with_spread
from qontext.evaluation.measures import Floats
from qontext.frame import html

_SHOWN = 160  # characters of a passage in the table of examples


@dataclass(frozen=True)
class Change:
    """A query on which two systems differ, with the first result of each and its relevance."""

    query: str
    a: float
    b: float
    top_a: str | None
    top_b: str | None
    right_a: bool
    right_b: bool


@dataclass(frozen=True)
class First:
    """A system's value for a query, its first passage and the relevance of that."""

    system: str
    value: float
    passage: str | None
    right: bool


Tops = Mapping[str, tuple[str, bool]]
"""query → its first passage, and whether that is judged relevant."""


def side_by_side(
    examples: Sequence[str], queries: Sequence[str], systems: Mapping[str, tuple[Floats, Tops]]
) -> dict[str, list[First]]:
    """query → the first passage of every system, for the wanted ones of the queries; `systems` are their values and
    their first passages."""
    place = {query: i for i, query in enumerate(queries)}
    return {
        query: [
            First(name, float(values[place[query]]), *tops.get(query, (None, False)))
            for name, (values, tops) in systems.items()
        ]
        for query in examples
    }


def tops(run: Run, qrels: Qrels, relevant: int) -> dict[str, tuple[str, bool]]:
    """query → its first passage, and whether that is judged relevant."""
    first = {query: _first(run, q) for q, query in enumerate(run.queries)}
    return {q: (top, qrels.get(q, {}).get(top, 0) >= relevant) for q, top in first.items()}


def _first(run: Run, q: int) -> str:
    """The first passage of a query, with ties broken as in the measures."""
    passages, scores = run.rows(q)
    with np.errstate(over="ignore"):
        single = scores.astype(np.float32)
    return max(passages[: int((single == single[0]).sum())])


def largest_changes(
    queries: Sequence[str],
    a: Floats,
    b: Floats,
    tops_a: Tops,
    tops_b: Tops,
    *,
    count: int,
) -> list[Change]:
    """The `count` queries that gain most from A to B, then the `count` that lose most; ties by query id."""
    delta = b - a
    order = sorted(range(len(queries)), key=lambda i: (-abs(delta[i]), queries[i]))
    gains = [i for i in order if delta[i] > 0][:count]
    losses = [i for i in order if delta[i] < 0][:count]
    changes = []
    for i in (*gains, *losses):
        (top_a, right_a), (top_b, right_b) = (
            tops.get(queries[i], (None, False)) for tops in (tops_a, tops_b)
        )
        changes.append(Change(queries[i], float(a[i]), float(b[i]), top_a, top_b, right_a, right_b))
    return changes


ExampleTexts = tuple[dict[str, str], dict[str, str]]
"""The texts of queries and of passages."""


def texts_of(data: str | None, examples: Mapping[str, Sequence[First]]) -> ExampleTexts:
    """The texts of the examples' queries and passages, from a labeled folder."""
    from qontext.data.collection import read_passages, read_queries

    if data is None or not examples:
        return {}, {}
    ids = {first.passage for row in examples.values() for first in row}
    passages = {p.id: " — ".join(filter(None, (p.title, p.text))) for p in read_passages(data) if p.id in ids}
    return read_queries(data), passages


def examples_as_json(row: Sequence[First], texts: ExampleTexts) -> list[dict[str, Any]]:
    """The first passages of all systems for a query, with their texts."""
    return [asdict(first) | {"text": texts[1].get(first.passage or "")} for first in row]


def _example_texts(change: Change, texts: ExampleTexts) -> dict[str, str | None]:
    queries, passages = texts
    return {
        "query_text": queries.get(change.query),
        "text_a": passages.get(change.top_a or ""),
        "text_b": passages.get(change.top_b or ""),
    }


def example_rows(
    examples: Mapping[str, Sequence[First]], measure: str, texts: ExampleTexts
) -> list[dict[str, Any]]:
    """A row for each query and system: its value, and its first passage, marked if relevant. Passages that look alike are
    told apart by their ids."""
    queries, passages = texts
    shown = {id: textwrap.shorten(text, _SHOWN, placeholder=" …") for id, text in passages.items()}
    repeated = Counter(shown.values())
    rows = []
    for query, row in examples.items():
        heading = queries.get(query, query)
        for first in row:
            text = "no results" if first.passage is None else shown.get(first.passage, first.passage)
            text = f"{first.passage}: {text}" if repeated[text] > 1 else text
            rows.append(
                {
                    "query": heading,
                    "system": first.system,
                    measure: f"{first.value:.3f}",
                    "": "✓" if first.right else "✗",
                    "first_passage": text,
                }
            )
            heading = ""
    return rows


@dataclass(frozen=True, eq=False)
class Comparison(Sequence[Pair]):
    """The differences of every two systems on every measure, as a sequence of `Pair`s, with the systems themselves.

    The largest gains and losses between the first two systems are examples: each has the first passage of every system.
    """

    systems: Sequence[SystemScores]
    pairs: Sequence[Pair]
    queries: Sequence[str]
    changes: Sequence[Change] = ()
    examples: Mapping[str, Sequence[First]] = field(default_factory=dict)
    """query → the first passage of every system, for the queries of the changes."""
    benchmark: str | None = None
    data: str | None = None
    """The labeled folder with the texts of the examples."""

    @classmethod
    def of(
        cls,
        systems: Sequence[SystemScores],
        firsts: Sequence[Tops],
        queries: Sequence[str],
        *,
        examples: int = 5,
        permutations: int = 10_000,
        seed: int = 42,
        benchmark: str | None = None,
        data: str | None = None,
    ) -> Comparison:
        """Compare systems on the same queries; `firsts` are the first passages of each."""
        measures = list(systems[0].seeds[0])
        # The share of judged results is not a quality measure, so it is shown but not tested.
        tested = [measure for measure in measures if not measure.startswith("Judged")]
        pairs = compare_systems(systems, tested, permutations=permutations, seed=seed)
        values = [system.per_query(measures[0]) for system in systems]
        changes = largest_changes(queries, values[0], values[1], firsts[0], firsts[1], count=examples)
        by_name = {one.name: (own, first) for one, own, first in zip(systems, values, firsts)}
        shown = side_by_side([change.query for change in changes], queries, by_name)
        return cls(systems, pairs, queries, changes, shown, benchmark, data)

    @property
    def measures(self) -> list[str]:
        return list(self.systems[0].seeds[0])

    @property
    def means(self) -> dict[str, dict[str, float]]:
        """system → measure → mean."""
        return {system.name: {m: system.mean(m)[0] for m in self.measures} for system in self.systems}

    @cached_property
    def texts(self) -> ExampleTexts:
        return texts_of(self.data, self.examples)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Pair]: ...
    def __getitem__(self, index: int | slice) -> Pair | Sequence[Pair]:
        return self.pairs[index]

    def __len__(self) -> int:
        return len(self.pairs)

    def mean_rows(self) -> list[dict[str, str]]:
        """The means as rows of a table, with standard deviations over seeds."""
        return [
            {"system": one.name} | {m: with_spread(*one.mean(m)) for m in self.measures}
            for one in self.systems
        ]

    def example_rows(self) -> list[dict[str, Any]]:
        """The examples as rows of a table."""
        return example_rows(self.examples, self.measures[0], self.texts)

    def as_json(self) -> dict[str, Any]:
        """The result of `qontext compare --json`."""
        return {
            "queries": len(self.queries),
            "benchmark": self.benchmark,
            "systems": [system.as_json(self.measures) for system in self.systems],
            "pairs": [asdict(pair) for pair in self.pairs],
            "examples": [
                asdict(change)
                | _example_texts(change, self.texts)
                | {"first": examples_as_json(self.examples[change.query], self.texts)}
                for change in self.changes
            ],
        }

    def __repr__(self) -> str:
        return (
            f"Comparison of {len(self.systems)} systems on {len(self.queries):,} queries: {list(self.pairs)}"
        )

    def _repr_html_(self) -> str:
        return html.table(self.mean_rows(), "Means") + html.table(
            [pair.row() for pair in self.pairs], "Differences"
        )
