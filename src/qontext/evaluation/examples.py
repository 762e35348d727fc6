"""Queries on which two systems differ most, with the first passage of every system."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qontext.data.collection import Qrels, read_passages, read_queries
from qontext.data.runs import Run
from qontext.evaluation.measures import Floats

_SHOWN = 160  # characters of a passage in a table

Tops = Mapping[str, tuple[str, bool]]
"""query → its first passage, and whether that is judged relevant."""


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
    systems: Mapping[str, tuple[Floats, Tops]],
    a: str,
    b: str,
    *,
    count: int = 5,
    data: str | None = None,
) -> list[QueryExample]:
    """The `count` queries that gain most from system `a` to `b`, then those that lose most, ties by query id; `systems` are
    the values and the first passages of each, `data` is a labeled folder with the texts."""
    delta = systems[b][0] - systems[a][0]
    order = sorted(range(len(queries)), key=lambda i: (-abs(delta[i]), queries[i]))
    chosen = [*[i for i in order if delta[i] > 0][:count], *[i for i in order if delta[i] < 0][:count]]
    firsts = {
        i: {name: firsts.get(queries[i], (None, False)) for name, (_, firsts) in systems.items()}
        for i in chosen
    }
    ids = {passage for by_name in firsts.values() for passage, _ in by_name.values()}
    texts, asked = dict[str | None, str](), dict[str, str]()
    if data is not None and chosen:
        asked = read_queries(data)
        texts |= {
            p.id: " — ".join(filter(None, (p.title, p.text))) for p in read_passages(data) if p.id in ids
        }
    return [
        QueryExample(
            queries[i],
            asked.get(queries[i]),
            float(delta[i]),
            [
                First(name, float(systems[name][0][i]), passage, is_right, texts.get(passage))
                for name, (passage, is_right) in firsts[i].items()
            ],
        )
        for i in chosen
    ]


def example_rows(examples: Sequence[QueryExample], measure: str) -> list[dict[str, Any]]:
    """A row for each query and system: its value, and its first passage, marked if relevant. Passages that look alike are
    told apart by their ids."""
    shown = {
        first.passage: textwrap.shorten(first.text or first.passage or "no results", _SHOWN, placeholder=" …")
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
