"""What `qontext mine` reports: counts of queries by outcome, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

NAMED = 10
"""Maximum number of queries without negatives to name."""


@dataclass
class Report:
    """Counts of the queries of a part, or of all."""

    queries: int = 0
    negatives: int = 0
    not_in_run: int = 0
    positives_removed: int = 0
    filtered: int = 0
    with_answers: int = 0
    unscored_positive: int = 0
    fewer_than_asked: int = 0
    lacking: int = 0
    such_as: list[str] = field(default_factory=list)
    """The first queries without negatives."""

    @classmethod
    def total(cls, parts: Sequence[Report]) -> Report:
        """The sum of the reports, in order."""
        total = cls()
        for part in parts:
            for name, value in asdict(part).items():
                setattr(total, name, getattr(total, name) + value)
        total.such_as = total.such_as[:NAMED]
        return total

    def summary(self, no_positive: int) -> dict[str, Any]:
        return {
            "queries": self.queries,
            "negatives": self.negatives,
            "negatives_per_query": round(self.negatives / self.queries, 2),
            "queries_without_negatives": self.lacking,
            "such_as": self.such_as,
            "queries_with_fewer_than_asked": self.fewer_than_asked,
            "queries_without_positives": no_positive,
            "queries_not_in_a_run": self.not_in_run,
            "positives_removed": self.positives_removed,
            "removed_by_score": self.filtered,
            **({"removed_by_answer": self.with_answers} if self.with_answers else {}),
            "queries_whose_positive_has_no_score": self.unscored_positive,
        }
