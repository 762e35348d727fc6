"""What every way to search must keep, asked of each in turn."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qontext import api
from qontext.artifacts import Artifact
from qontext.errors import QontextError
from qontext.retrieve.index.load import open_index

BACKENDS = {
    "exact": None,
    "faiss-hnsw": "faiss",
    "faiss-ivfpq": "faiss",
    "milvus": "milvus_lite",
}
ROWS, DIMENSIONS = 600, 16


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    package = BACKENDS[request.param]
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    yield request.param


@pytest.fixture
def vectors(make_vectors: Callable[..., Artifact]) -> Artifact:
    """Two parts whose ids are not in order; passages p000 and p001 have the same vector."""
    array = np.random.default_rng(3).standard_normal((ROWS, DIMENSIONS)).astype(np.float32)
    ids = [f"p{i:03d}" for i in np.random.default_rng(4).permutation(ROWS)]
    array[ids.index("p001")] = array[ids.index("p000")]
    return make_vectors("vectors", [(ids[:400], array[:400]), (ids[400:], array[400:])])


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    """`opened(backend, vectors, out)` builds and opens an index; what has a connection is closed in the end."""
    indexes: list[Any] = []

    def open_one(backend: str, vectors: Artifact, out: Path) -> Any:
        made = vectors
        if backend != "exact":
            settings = {"code_bytes": 16, "lists": 4, "probes": 4} if backend == "faiss-ivfpq" else {}
            made = api.index(vectors, backend=backend, out=out / "index", **settings)
        index, encoder = open_index(made.path)
        assert encoder == {"path": "nowhere", "digest": "d"}
        indexes.append(index)
        return index

    yield open_one
    for index in indexes:
        if hasattr(index, "client"):
            index.client.close()


def brute_force(vectors: Artifact, queries: Any, k: int) -> list[list[str]]:
    loaded, _ = open_index(vectors.path)
    array = np.concatenate(loaded.vectors.parts)
    ids = np.concatenate([part.to_numpy(zero_copy_only=False) for part in loaded.vectors.part_ids])
    return [[ids[i] for i in np.lexsort((ids, -(array @ query)))[:k]] for query in queries]


def test_the_nearest_are_found_in_order(
    opened: Callable[..., Any], backend: str, vectors: Artifact, tmp_path: Path
) -> None:
    index = opened(backend, vectors, tmp_path)
    queries = np.random.default_rng(5).standard_normal((20, DIMENSIONS)).astype(np.float32)
    numbers, scores = index.search(queries, 10)
    assert numbers.shape == scores.shape == (20, 10) and index.dimension == DIMENSIONS
    assert list(index.ids) == sorted(index.ids) and len(index.ids) == ROWS
    assert (np.diff(scores, axis=1) <= 0).all()
    found = [[index.ids[n] for n in row] for row in numbers]
    expected = brute_force(vectors, queries, 10)
    if backend in ("exact", "milvus"):
        assert found == expected
    else:
        overlap = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, expected)])
        assert overlap > (0.5 if backend == "faiss-ivfpq" else 0.95)


def test_equal_passages_tie_by_id(
    opened: Callable[..., Any], backend: str, vectors: Artifact, tmp_path: Path
) -> None:
    index = opened(backend, vectors, tmp_path)
    loaded, _ = open_index(vectors.path)
    query = loaded.vectors.parts[0][:1] * 0
    twin = next(
        part[list(ids).index("p000")]
        for part, ids in zip(loaded.vectors.parts, (i.to_pylist() for i in loaded.vectors.part_ids))
        if "p000" in ids
    )
    numbers, scores = index.search(query + twin, 2)
    assert [index.ids[n] for n in numbers[0]] == ["p000", "p001"] and scores[0, 0] == scores[0, 1]


def test_no_more_than_there_is_and_no_stranger(
    opened: Callable[..., Any], backend: str, vectors: Artifact, tmp_path: Path
) -> None:
    index = opened(backend, vectors, tmp_path)
    numbers, _ = index.search(np.ones((1, DIMENSIONS), np.float32), ROWS + 50)
    found = numbers[numbers >= 0]
    assert len(set(found.tolist())) == len(found) <= ROWS and found.max() < ROWS


def test_the_same_twice(opened: Callable[..., Any], backend: str, vectors: Artifact, tmp_path: Path) -> None:
    index = opened(backend, vectors, tmp_path)
    queries = np.random.default_rng(6).standard_normal((3, DIMENSIONS)).astype(np.float32)
    for first, second in zip(index.search(queries, 5), index.search(queries, 5)):
        np.testing.assert_array_equal(first, second)


def test_a_damaged_index_is_told(vectors: Artifact, tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed")
    made = api.index(vectors, backend="faiss-hnsw", out=tmp_path / "index")
    (made.path / "index.faiss").write_bytes(b"IxHN")
    with pytest.raises(QontextError, match="not a readable faiss index"):
        open_index(made.path)


def test_settings_that_cannot_work_are_told(vectors: Artifact, tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed")
    with pytest.raises(QontextError, match="does not divide the 16 dimensions"):
        api.index(vectors, backend="faiss-ivfpq", code_bytes=5, out=tmp_path / "index")
