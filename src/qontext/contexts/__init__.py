"""A passage's context, as a pure function of (passage, visit, seed): the second member of a training pair.

| name | rule |
|---|---|
| `near` | an adjacent passage, no overlap |
| `olap` | an adjacent span of text that shares sentences with the passage |
| `rand` | any other passage of the same document |
| `query` | one of the passage's queries |
| `a+b` | one of the named rules, drawn at every visit |
| `query+a+b` | queries at one step, one of the other rules at another, drawn at every step with a probability |

Query-as-context mixes per step ("in a training step", section 5.2); CoT-MAE mixes its three rules per pair.

A rule is one function in one file, with the signature ``rule(sources, passages, visits, seed) -> Slices``, and one
line in `RULES`, which says whether it reads queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qontext.contexts import neighbors, query
from qontext.contexts.base import Ints, Slices, Sources
from qontext.frame.errors import QontextError, choose
from qontext.training.randomness import below, uniform


@dataclass(frozen=True)
class Rule:
    """How contexts are drawn, and whether they are queries (then passages without queries have no context of
    this rule)."""

    draw: Callable[[Sources, Ints, Ints, int], Slices]
    reads_queries: bool = False


RULES = {
    "near": Rule(neighbors.near),
    "olap": Rule(neighbors.olap),
    "rand": Rule(neighbors.rand),
    "query": Rule(query.query, reads_queries=True),
}
ALIASES = {"mixed": "query+rand"}
"""Short names of mixtures."""


def rules_of(name: str) -> list[Rule]:
    """The rules of a context: one name, or several joined by +."""
    parts = ALIASES.get(name, name).split("+")
    return [RULES[choose(part, [*RULES, *ALIASES] if part == name else RULES, "context")] for part in parts]


def reads_queries(name: str) -> bool:
    """Whether a context reads queries."""
    return any(rule.reads_queries for rule in rules_of(name))


class Context:
    """A rule by name, or a mixture of rules."""

    def __init__(self, name: str, sources: Sources, query_share: float = 0.5) -> None:
        self.sources = sources
        self.rules = rules_of(name)
        self.query_share = query_share
        self.needs_queries = reads_queries(name)
        if self.needs_queries and sources.queries is None:
            raise QontextError(
                f"the context {name!r} needs queries",
                remedy="Pass --queries with the output of 'qontext generate'.",
            )
        self.only_queries = all(rule.reads_queries for rule in self.rules)

    def draw(self, passages: Ints, visits: Ints, seed: int, step: int) -> Slices:
        """The contexts of these passages at these visits, in this step; an empty one is replaced by the passage itself."""
        slices = self._draw(passages, visits, seed, step)
        if (slices.lengths > 0).all():
            return slices
        return Slices.where(slices.lengths > 0, slices, Slices.of_passages(self.sources.passages, passages))

    def _draw(self, passages: Ints, visits: Ints, seed: int, step: int) -> Slices:
        if len(self.rules) == 1:
            return self.rules[0].draw(self.sources, passages, visits, seed)
        numbers = np.arange(len(self.rules))
        reads = np.asarray([rule.reads_queries for rule in self.rules])
        kept = numbers if self.only_queries else numbers[~reads]
        rule_of = kept[below(len(kept), seed, "rule", passages, visits)]
        if len(kept) < len(numbers) and uniform(seed, "queries", step) < self.query_share:
            rule_of = np.where(self.sources.query_counts[passages] > 0, numbers[reads][0], rule_of)
        rows = [np.flatnonzero(rule_of == i) for i in numbers]
        slices = [rule.draw(self.sources, passages[r], visits[r], seed) for rule, r in zip(self.rules, rows)]
        return Slices.join(slices)[np.argsort(np.concatenate(rows))]
