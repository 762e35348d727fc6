"""Vectors in memory are searched with the results of those on disk."""

from __future__ import annotations

import numpy as np
import pytest
from tests.serve.conftest import World

from qontext.retrieve.index import How, flat
from qontext.retrieve.index.exact import ExactIndex
from qontext.retrieve.index.flat import FlatIndex
from qontext.retrieve.index.load import open_index
from qontext.serve.systems import SCANNED

SERVED = How(few=SCANNED, in_memory=True)


def test_vectors_in_memory_have_the_results_of_stored_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, _ = open_index(world / "vectors")
    index, _ = open_index(world / "vectors", SERVED)
    assert isinstance(index, FlatIndex) and index.dimension == 16 and list(index.ids) == list(stored.ids)
    assert {part.dtype for part in index.vectors.parts} == {np.dtype(np.float32)}
    some = np.arange(len(index.ids)) % 3 == 0
    for count in (1, SCANNED, SCANNED + 1):
        queries = np.random.default_rng(count).standard_normal((count, 16)).astype(np.float32)
        for rows in (None, some):
            numbers, scores = index.search(queries, 5, rows)
            expected, of_expected = stored.search(queries, 5, rows)
            np.testing.assert_array_equal(numbers, expected)
            np.testing.assert_allclose(scores, of_expected, atol=1e-5)
    monkeypatch.setattr(flat, "LARGEST_IN_MEMORY", 1_000)
    assert isinstance(open_index(world / "vectors", SERVED)[0], ExactIndex)
