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
from numpy.typing import NDArray

from qontext.contexts import neighbours, query
from qontext.contexts.base import Slices, Sources
from qontext.engine.randomness import below, uniform
from qontext.errors import QontextError, choose

Rule = Callable[[Sources, NDArray[np.int64], NDArray[np.int64], int], Slices]

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
        parts = ["query", "rand"] if name == "mixed" else name.split("+")
        self.rules = [RULES[choose(part, [*RULES, "mixed"], "context")] for part in parts]
        self.shares = np.full(len(parts), 1 / len(parts))
        if name == "mixed":
            self.shares = np.array([query_share, 1 - query_share])
        self.needs_queries = "query" in parts
        if self.needs_queries and sources.queries is None:
            raise QontextError(f"the context {name!r} needs queries", remedy="Give --queries, from 'qontext generate'.")
        self.only_queries = parts == ["query"]

    def draw(self, passages: NDArray[np.int64], visits: NDArray[np.int64], seed: int) -> Slices:
        """The contexts of these passages at these visits."""
        if len(self.rules) == 1:
            return self.rules[0](self.sources, passages, visits, seed)
        chosen = np.searchsorted(np.cumsum(self.shares)[:-1], uniform(seed, "rule", passages, visits), "right")
        if self.needs_queries:  # a passage without queries gets one of the other rules
            bare = self.sources.query_counts[passages] == 0
            other = [i for i, rule in enumerate(self.rules) if rule is not query.query]
            moved = np.asarray(other)[below(len(other), seed, "rule without query", passages, visits)]
            chosen = np.where(bare & ~np.isin(chosen, other), moved, chosen)
        drawn = [rule(self.sources, passages[chosen == i], visits[chosen == i], seed) for i, rule in enumerate(self.rules)]
        order = np.argsort(np.concatenate([np.flatnonzero(chosen == i) for i in range(len(drawn))]))
        return Slices.join(drawn)[order]
