"""The context `query`: one of the passage's C queries, drawn at every visit (query-as-context, section 3.1).

uniform    P(q) = 1 / C
weighted   P(q) ∝ w(q),  with w from a filter's scores
"""

from __future__ import annotations

import numpy as np

from qontext.contexts.base import Ints, Slices, Sources
from qontext.training.randomness import uniform


def query(sources: Sources, passages: Ints, visits: Ints, seed: int) -> Slices:
    """A query of each passage; the passages must have one."""
    store = sources.queries
    assert store is not None
    counts, first = sources.query_counts[passages], store.groups[sources.query_group[passages]]
    assert (counts > 0).all(), "a passage without queries has no query context"
    dice = uniform(seed, "query", passages, visits)
    if sources.query_weights is None:
        number = first + (dice * counts).astype(np.int64)
    else:
        cumulative = sources.query_cumulative
        low, high = cumulative[first], cumulative[first + counts]
        number = np.searchsorted(cumulative, low + dice * (high - low), "right") - 1
        number = np.clip(number, first, first + counts - 1)
    return Slices(store.offsets[number], store.offsets[number + 1], np.ones(len(passages), bool))
