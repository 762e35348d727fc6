"""Vectors in memory are searched with the results of those on disk."""

from __future__ import annotations

import numpy as np
import pytest
from tests.serve.conftest import World

from qontext.retrieve.index.exact import ExactIndex
from qontext.retrieve.index.load import open_index
from qontext.serve import held
from qontext.serve.held import HeldIndex


def test_held_vectors_have_the_results_of_stored_ones(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, _ = open_index(world / "vectors")
    index = held.held(stored)
    assert isinstance(index, HeldIndex) and index.dimension == 16 and list(index.ids) == list(stored.ids)
    assert {part.dtype for part in index.vectors.parts} == {np.dtype(np.float32)}
    some = np.arange(len(index.ids)) % 3 == 0
    for count in (1, held.FEW, held.FEW + 1):
        queries = np.random.default_rng(count).standard_normal((count, 16)).astype(np.float32)
        for rows in (None, some):
            numbers, scores = index.search(queries, 5, rows)
            expected, of_expected = stored.search(queries, 5, rows)
            np.testing.assert_array_equal(numbers, expected)
            np.testing.assert_allclose(scores, of_expected, atol=1e-5)
    monkeypatch.setattr(held, "LARGEST", 1_000)
    assert isinstance(held.held(stored), ExactIndex)
