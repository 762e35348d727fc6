from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch

from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError
from qontext.retrieve.index.exact import Best, ExactIndex
from qontext.retrieve.index.flat import FlatIndex
from qontext.retrieve.stored import open_vectors

ROWS, DIMENSIONS, QUERIES = 5_000, 24, 300


@pytest.fixture
def array() -> np.ndarray:
    """Vectors of which every tenth is a copy of another, so that there are many ties."""
    array = np.random.default_rng(1).standard_normal((ROWS, DIMENSIONS)).astype(np.float32)
    array[::10] = array[5::10]
    return array


@pytest.fixture
def queries() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((QUERIES, DIMENSIONS)).astype(np.float32)


def shards(array: np.ndarray, cuts: list[int]) -> list[tuple[list[str], np.ndarray]]:
    ids = [f"p{i:04d}" for i in np.random.default_rng(3).permutation(ROWS)]
    bounds = [0, *cuts, ROWS]
    return [(ids[a:b], array[a:b]) for a, b in pairwise(bounds)]


@pytest.mark.parametrize("k", [1, 10, 257])
def test_any_cut_into_parts_gives_the_same_bits(
    make_vectors: Callable[..., Artifact], array: np.ndarray, queries: np.ndarray, k: int
) -> None:
    one = ExactIndex(open_vectors(make_vectors("one", shards(array, [])).path), device="cpu")
    many = ExactIndex(open_vectors(make_vectors("many", shards(array, [7, 100, 3333])).path), device="cpu")
    numbers, scores = one.search(queries, k)
    again, scores_again = many.search(queries, k)
    np.testing.assert_array_equal(numbers, again)
    np.testing.assert_array_equal(scores, scores_again)
    exact = queries.astype(np.float64) @ np.concatenate(one.vectors.parts).astype(np.float64).T
    best = -np.sort(-exact, axis=1)[:, :k]
    np.testing.assert_allclose(scores, best, rtol=1e-5)
    ties = scores[:, 1:] == scores[:, :-1]
    assert (numbers[:, 1:] > numbers[:, :-1])[ties].all() and (k == 1 or ties.any())


def test_low_precision_with_rescoring_finds_the_same_top_100(
    make_vectors: Callable[..., Artifact], array: np.ndarray, queries: np.ndarray
) -> None:
    vectors = open_vectors(make_vectors("v", shards(array, [2500])).path)
    numbers, scores = ExactIndex(vectors, device="cpu").search(queries[:20], 100)
    coarse = ExactIndex(vectors, device="cpu", scoring=torch.bfloat16).search(queries[:20], 100)
    np.testing.assert_allclose(coarse[1], scores, rtol=1e-5)
    assert np.mean([set(a) == set(b) for a, b in zip(coarse[0], numbers)]) == 1


@pytest.mark.parametrize("share", [1.0, 0.3, 0.003])
def test_low_precision_over_parts_in_any_order_and_under_conditions(
    make_vectors: Callable[..., Artifact], array: np.ndarray, queries: np.ndarray, share: float
) -> None:
    dice = np.random.default_rng(7)
    order = dice.permutation(len(array))
    parts = [([f"p{i:05d}" for i in some], array[some]) for some in np.array_split(order, 5)]
    vectors = open_vectors(make_vectors("v", parts).path)
    rows = None if share == 1 else dice.random(len(array)) < share
    fine = ExactIndex(vectors, device="cpu").search(queries[:20], 30, rows)
    coarse = ExactIndex(vectors, device="cpu", scoring=torch.bfloat16).search(queries[:20], 30, rows)
    np.testing.assert_allclose(coarse[1], fine[1], rtol=1e-5, atol=1e-5)
    assert [set(row) for row in coarse[0]] == [set(row) for row in fine[0]]


@pytest.mark.parametrize("scoring", [torch.float32, torch.bfloat16])
def test_no_queries_have_no_results(
    make_vectors: Callable[..., Artifact], array: np.ndarray, scoring: torch.dtype
) -> None:
    index = ExactIndex(open_vectors(make_vectors("v", shards(array, [])).path), device="cpu", scoring=scoring)
    numbers, scores = index.search(np.empty((0, DIMENSIONS), np.float32), 10)
    assert numbers.shape == scores.shape == (0, 10)


def test_low_precision_leaves_the_first_of_many_equal_passages(make_vectors: Callable[..., Artifact]) -> None:
    """More than survive the first pass, and all as good as the last one asked for."""
    one, other = np.random.default_rng(4).standard_normal((2, 1, DIMENSIONS)).astype(np.float32)
    array = np.concatenate([one, np.repeat(other, 3_000, 0)])[np.random.default_rng(5).permutation(3_001)]
    parts = [
        ([f"p{i:04d}" for i in range(3_001)], array),
        (["q1", "q2"], np.repeat(-other, 2, 0)),
    ]  # none survives
    vectors = open_vectors(make_vectors("v", parts).path)
    (numbers,), (scores,) = ExactIndex(vectors, device="cpu", scoring=torch.bfloat16).search(other, 10)
    np.testing.assert_array_equal(numbers, np.flatnonzero((array == other).all(1))[:10])
    np.testing.assert_allclose(scores, (other @ other.T).item(), rtol=1e-6)


@pytest.mark.parametrize("count", [1, 3, 8, 20, 64])
def test_few_questions_find_what_many_find_and_equal_passages_stay_in_order(
    make_vectors: Callable[..., Artifact], count: int
) -> None:
    """A question alone is a product of another shape than a hundred."""
    dice = np.random.default_rng(6)
    different, questions = (dice.standard_normal((n, DIMENSIONS)).astype(np.float32) for n in (40, 100))
    array = np.repeat(different, ROWS // 40, 0)[dice.permutation(ROWS)]
    index = ExactIndex(open_vectors(make_vectors("v", shards(array, [2_000])).path), device="cpu")
    numbers, scores = index.search(questions, 120)
    few = index.search(questions[:count], 120)
    np.testing.assert_array_equal(few[0], numbers[:count])
    np.testing.assert_allclose(few[1], scores[:count], rtol=1e-5)


def test_it_equals_faiss_flat(
    make_vectors: Callable[..., Artifact], array: np.ndarray, queries: np.ndarray
) -> None:
    faiss = pytest.importorskip("faiss", reason="faiss is not installed")
    unique = np.unique(array, axis=0)[:4_000]
    flat = faiss.IndexFlatIP(DIMENSIONS)
    flat.add(unique)
    scores, rows = flat.search(queries, 50)
    vectors = open_vectors(make_vectors("v", [([f"p{i:04d}" for i in range(4_000)], unique)]).path)
    numbers, ours = ExactIndex(vectors, device="cpu").search(queries, 50)
    np.testing.assert_allclose(ours, scores, rtol=1e-5)
    assert (numbers == rows).mean() > 0.999


@pytest.mark.parametrize(("width", "k"), [(10, 3), (1_024, 5), (4_096, 100), (320, 319)])
def test_blocks_offered_in_turn_leave_the_greatest(width: int, k: int) -> None:
    """Scores are small whole numbers, so that nearly everything ties."""
    scores = torch.from_numpy(np.random.default_rng(width).integers(0, 9, (3, 4 * width)).astype(np.float32))
    numbers = torch.from_numpy(np.random.default_rng(k).permutation(4 * width))
    best = Best(3, k, k, torch.device("cpu"))
    for start in range(0, 4 * width, width):
        best.offer(slice(0, 3), scores[:, start : start + width].clone(), numbers[start : start + width])
    ranked, values = best.ranked()
    for row in range(3):
        order = np.lexsort((numbers, -scores[row]))[:k]
        np.testing.assert_array_equal(ranked[row], numbers[order])
        np.testing.assert_array_equal(values[row], scores[row, order])


@pytest.mark.parametrize("among", ["all", "some", "one"])
def test_the_scan_without_torch_finds_the_same_up_to_rounding(
    make_vectors: Callable[..., Artifact], array: np.ndarray, queries: np.ndarray, among: str
) -> None:
    vectors = open_vectors(make_vectors("v", shards(array, [7, 100, 3333])).path)
    rows = {"all": None, "some": np.arange(ROWS) % 3 == 0, "one": np.arange(ROWS) == 4711}[among]
    numbers, scores = ExactIndex(vectors, device="cpu").search(queries[:9], 20, rows)
    scanned, their_scores = FlatIndex(vectors).search(queries[:9], 20, rows)
    width = numbers.shape[1]
    np.testing.assert_allclose(their_scores[:, :width], scores, rtol=1e-5)
    assert (scanned[:, width:] == -1).all()
    clear = np.diff(scores, axis=1, prepend=np.inf, append=-np.inf) < -1e-4
    alone = clear[:, 1:] & clear[:, :-1]  # neither the place before nor the one after is as good
    assert (scanned[:, :width] == numbers)[alone].all() and alone.any()


def test_the_scan_refuses_vectors_that_are_not_finite(
    make_vectors: Callable[..., Artifact], array: np.ndarray, queries: np.ndarray
) -> None:
    array[1234, 5] = np.nan
    vectors = open_vectors(make_vectors("v", shards(array, [])).path)
    with pytest.raises(QontextError, match="not finite"):
        FlatIndex(vectors).search(queries[:1], 5)
