"""A passage's context, as a pure function of (passage, visit, seed): the second member of a training pair.

| name | rule |
|---|---|
| `near` | an adjacent passage, no overlap |
| `olap` | an adjacent stretch of text that shares sentences with the passage |
| `rand` | any other passage of the same document |
| `query` | one of the passage's queries |
| `a+b` | one of the named ones, drawn afresh at every visit |
| `mixed` | a query or `rand`, with a probability |

A rule is one function in one file, with the signature ``rule(sources, passages, visits, seed) -> Slices``, and one
line in `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qontext.contexts import neighbours, query
from qontext.contexts.base import Ints, Slices, Sources
from qontext.contexts.names import check_context
from qontext.engine.randomness import below, uniform
from qontext.errors import QontextError

Rule = Callable[[Sources, Ints, Ints, int], Slices]

RULES: dict[str, Rule] = {
    "near": neighbours.near,
    "olap": neighbours.olap,
    "rand": neighbours.rand,
    "query": query.query,
}


class Context:
    """A rule by name, or a mixture of rules."""

    def __init__(self, name: str, sources: Sources, query_share: float = 0.5) -> None:
        self.sources = sources
        check_context(name)
        parts = ["query", "rand"] if name == "mixed" else name.split("+")
        self.rules = [RULES[part] for part in parts]
        self.shares = np.full(len(parts), 1 / len(parts))
        if name == "mixed":
            self.shares = np.array([query_share, 1 - query_share])
        self.needs_queries = "query" in parts
        if self.needs_queries and sources.queries is None:
            raise QontextError(
                f"the context {name!r} needs queries", remedy="Give --queries, from 'qontext generate'."
            )
        self.only_queries = parts == ["query"]

    def draw(self, passages: Ints, visits: Ints, seed: int) -> Slices:
        """The contexts of these passages at these visits; an empty one is replaced by the passage itself."""
        drawn = self._draw(passages, visits, seed)
        if (drawn.lengths > 0).all():
            return drawn
        return Slices.where(drawn.lengths > 0, drawn, Slices.of_passages(self.sources.passages, passages))

    def _draw(self, passages: Ints, visits: Ints, seed: int) -> Slices:
        if len(self.rules) == 1:
            return self.rules[0](self.sources, passages, visits, seed)
        chosen = np.searchsorted(
            np.cumsum(self.shares)[:-1], uniform(seed, "rule", passages, visits), "right"
        )
        if self.needs_queries:  # a passage without queries gets one of the other rules
            bare = self.sources.query_counts[passages] == 0
            others = np.asarray([i for i, rule in enumerate(self.rules) if rule is not query.query])
            instead = others[below(len(others), seed, "rule without query", passages, visits)]
            chosen = np.where(bare & ~np.isin(chosen, others), instead, chosen)
        rows = [np.flatnonzero(chosen == i) for i in range(len(self.rules))]
        drawn = [rule(self.sources, passages[r], visits[r], seed) for rule, r in zip(self.rules, rows)]
        return Slices.join(drawn)[np.argsort(np.concatenate(rows))]
