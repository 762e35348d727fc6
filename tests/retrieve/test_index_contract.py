"""What every way to search must keep, asked of each in turn."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.retrieve.conftest import write_tokens, write_vectors

from qontext import api
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError
from qontext.models.packed import Packed
from qontext.retrieve.index import BACKENDS
from qontext.retrieve.index.flat import FlatIndex
from qontext.retrieve.index.load import open_index
from qontext.retrieve.stored import open_vectors

OF_VECTORS = [name for name in BACKENDS.own if BACKENDS.load(name).reads == "vectors"]
OF_TOKENS = [name for name in BACKENDS.own if BACKENDS.load(name).reads == "tokens"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": ("exact", {}),
    "scan": ("scan", {}),
    "faiss-hnsw": ("faiss-hnsw", {}),
    "faiss-ivfpq": ("faiss-ivfpq", {"code_bytes": 16, "lists": 4, "probes": 4}),
    "faiss-8-bits": ("faiss", {"factory": "SQ8,RFlat", "parameters": "k_factor_rf=4"}),
    "faiss-1-bit": ("faiss", {"factory": "RaBitQ,RFlat", "parameters": "k_factor_rf=20"}),
    "faiss-rotated": ("faiss", {"factory": "RR16,IVF4,Flat", "parameters": "nprobe=4"}),
    "residual": ("residual", {"probes": 256}),
    "milvus-lite": ("milvus", {}),
    "milvus-server": ("milvus", {"collection": "contract", "kind": "HNSW", "neighbors": 8, "effort": 100}),
    "postgres-hnsw": ("postgres", {"table": "contract hnsw"}),
    "postgres-ivfflat": (
        "postgres",
        {"table": "contract_ivfflat", "kind": "ivfflat", "lists": 4, "probes": 4},
    ),
    "postgres-exact": ("postgres", {"table": "contract_exact", "kind": "exact"}),
}
"""Every backend of the table that is searched with vectors, with settings, and the vectors themselves. One of tokens has
passages and queries of one token.

That of a Milvus server runs in `test_milvus_server.py`, so that one module starts the server."""
PACKAGES = {"faiss": "faiss", "faiss-hnsw": "faiss", "faiss-ivfpq": "faiss", "milvus": "milvus_lite"}
RECALL = {
    "faiss-8-bits": 0.95,
    "faiss-1-bit": 0.9,
    "faiss-rotated": 0.95,
    "residual": 0.7,
    "faiss-hnsw": 0.95,
    "faiss-ivfpq": 0.5,
    "milvus-server": 0.95,
    "postgres-hnsw": 0.95,
}
"""Of the best ten, at least; 1 where nothing stands."""
ROWS, DIMENSIONS = 600, 16


def test_every_backend_has_a_case() -> None:
    assert {*OF_VECTORS, *OF_TOKENS, "exact", "scan"} == {backend for backend, _ in CASES.values()}


@pytest.fixture(scope="module", params=[case for case in CASES if case != "milvus-server"])
def backend(request: pytest.FixtureRequest) -> str:
    package = PACKAGES.get(CASES[request.param][0])
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return str(request.param)


@pytest.fixture(scope="module")
def parts() -> list[tuple[list[str], Any]]:
    """Two parts whose ids are not in order; passages p000 and p001 have the same vector."""
    array = np.random.default_rng(3).standard_normal((ROWS, DIMENSIONS)).astype(np.float32)
    ids = [f"p{i:03d}" for i in np.random.default_rng(4).permutation(ROWS)]
    array[ids.index("p001")] = array[ids.index("p000")]
    return [(ids[:400], array[:400]), (ids[400:], array[400:])]


@pytest.fixture(scope="module")
def vectors(parts: list[tuple[list[str], Any]], tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return write_vectors(tmp_path_factory.mktemp("contract") / "vectors", parts)


def one_token(vectors: Any) -> Packed:
    """Texts of one token each."""
    return Packed(np.arange(len(vectors) + 1), vectors)


def ask_with_vectors(index: Any) -> None:
    """Turn queries of one vector into queries of one token."""
    search = index.search
    index.search = lambda queries, k, rows=None: search(one_token(queries), k, rows)


@pytest.fixture(scope="module")
def index(
    request: pytest.FixtureRequest,
    backend: str,
    vectors: Artifact,
    parts: list[tuple[list[str], Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """The vectors' index, opened. What has a connection is closed in the end."""
    name, settings = CASES[backend]
    if name == "scan":
        yield FlatIndex(open_vectors(vectors.path))
        return
    built = vectors
    if name != "exact":
        if backend == "milvus-server":
            settings = {**settings, "uri": request.getfixturevalue("milvus_server")}
        elif name == "postgres":
            settings = {**settings, "uri": request.getfixturevalue("postgres").uri}
        folder, source = tmp_path_factory.mktemp("contract"), vectors
        if name in OF_TOKENS:
            source = write_tokens(folder / "tokens", [(ids, one_token(array)) for ids, array in parts])
        built = api.index(source, backend=name, out=folder / "index", **settings)
    opened, encoder = open_index(built.path)
    if name in OF_TOKENS:
        ask_with_vectors(opened)
    assert encoder == {"path": "nowhere", "digest": "d"}
    yield opened
    if hasattr(opened, "client"):
        opened.client.close()


def brute_force(vectors: Artifact, queries: Any, k: int) -> list[list[str]]:
    loaded, _ = open_index(vectors.path)
    array = np.concatenate(loaded.vectors.parts)
    ids = np.concatenate([part.to_numpy(zero_copy_only=False) for part in loaded.vectors.part_ids])
    return [[ids[i] for i in np.lexsort((ids, -(array @ query)))[:k]] for query in queries]


def test_the_nearest_are_found_in_order(index: Any, backend: str, vectors: Artifact) -> None:
    queries = np.random.default_rng(5).standard_normal((20, DIMENSIONS)).astype(np.float32)
    numbers, scores = index.search(queries, 10)
    assert numbers.shape == scores.shape == (20, 10) and index.dimension == DIMENSIONS
    assert list(index.ids) == sorted(index.ids) and len(index.ids) == ROWS
    assert (np.diff(scores, axis=1) <= 0).all()
    nearest = [[index.ids[n] for n in row] for row in numbers]
    expected = brute_force(vectors, queries, 10)
    if backend not in RECALL:
        assert nearest == expected
    overlap = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(nearest, expected)])
    assert overlap >= RECALL.get(backend, 1.0)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.5, 1.0])
def test_the_nearest_of_some_passages_are_those_of_all_without_the_others(
    index: Any, backend: str, vectors: Artifact, share: float
) -> None:
    queries = np.random.default_rng(5).standard_normal((5, DIMENSIONS)).astype(np.float32)
    rows = np.random.default_rng(8).random(ROWS) < share
    rows[100:105] = rows[7] = share > 0
    numbers, scores = index.search(queries, 10, rows)
    assert numbers.shape == scores.shape == (5, min(10, rows.sum()))
    assert rows[numbers].all()
    nearest = [[index.ids[n] for n in row] for row in numbers]
    if backend in (
        "faiss-ivfpq",
        "residual",
    ):  # its scores are of compressed vectors: those that it gives itself
        everything, _ = index.search(queries, ROWS)
        expected = [[index.ids[n] for n in row if n >= 0 and rows[n]][:10] for row in everything]
    else:
        chosen = {*index.ids[rows]}
        expected = [[id for id in row if id in chosen][:10] for row in brute_force(vectors, queries, ROWS)]
    assert nearest == expected


def test_equal_passages_tie_by_id(index: Any, backend: str, vectors: Artifact) -> None:
    loaded, _ = open_index(vectors.path)
    query = loaded.vectors.parts[0][:1] * 0
    twin = next(
        part[list(ids).index("p000")]
        for part, ids in zip(loaded.vectors.parts, (i.to_pylist() for i in loaded.vectors.part_ids))
        if "p000" in ids
    )
    numbers, scores = index.search(query + twin, 2)
    assert [index.ids[n] for n in numbers[0]] == ["p000", "p001"] and scores[0, 0] == scores[0, 1]


def test_no_more_than_there_is_and_no_stranger(index: Any, backend: str, vectors: Artifact) -> None:
    numbers, _ = index.search(np.ones((1, DIMENSIONS), np.float32), ROWS + 50)
    rows = numbers[numbers >= 0]
    assert len(set(rows.tolist())) == len(rows) <= ROWS and rows.max() < ROWS


def test_the_same_twice(index: Any) -> None:
    queries = np.random.default_rng(6).standard_normal((3, DIMENSIONS)).astype(np.float32)
    for first, second in zip(index.search(queries, 5), index.search(queries, 5)):
        np.testing.assert_array_equal(first, second)


def test_a_damaged_index_is_told(vectors: Artifact, tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed")
    artifact = api.index(vectors, backend="faiss-hnsw", out=tmp_path / "index")
    file = artifact.path / "index.faiss"
    for content in (b"IxHN", bytes(file.stat().st_size)):
        file.write_bytes(content)
        with pytest.raises(QontextError, match=r"index\.faiss: damaged.*run 'qontext index'"):
            open_index(artifact.path)


@pytest.mark.parametrize("name", ["exact", "scan", *OF_VECTORS, *OF_TOKENS])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_vectors_that_are_not_finite_are_refused(
    make_vectors: Callable[..., Artifact], name: str, tmp_path: Path, value: float, dtype: type
) -> None:
    array = np.random.default_rng(3).standard_normal((ROWS, DIMENSIONS)).astype(dtype)
    array[471, 3] = value
    ids = [f"p{i:03d}" for i in np.random.default_rng(4).permutation(ROWS)]
    parts = [(ids[:400], array[:400]), (ids[400:], array[400:])]
    if name in OF_TOKENS:
        broken = write_tokens(tmp_path / "broken", [(ids, one_token(array)) for ids, array in parts])
    else:
        broken = make_vectors("broken", parts)
    with pytest.raises(QontextError, match=rf"broken: the vector of '{ids[471]}' is not finite"):
        if name == "exact":
            open_index(broken.path)[0].search(array[:5].astype(np.float32), 3)
        elif name == "scan":
            FlatIndex(open_vectors(broken.path)).search(array[:5].astype(np.float32), 3)
        else:
            api.index(broken, backend=name, out=tmp_path / "index")


def test_large_vectors_are_no_damage(make_vectors: Callable[..., Artifact]) -> None:
    array = np.full((100, 4), 3e37, np.float32)  # their sum overflows
    vectors = make_vectors("large", [([f"p{i:02d}" for i in range(100)], array)])
    numbers, _ = open_index(vectors.path)[0].search(np.full((1, 4), 0.1, np.float32), 2)
    assert numbers.tolist() == [[0, 1]]


def test_a_local_milvus_database_is_whole_when_it_is_described(vectors: Artifact, tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    artifacts = [api.index(vectors, backend="milvus", out=tmp_path / name) for name in ("one", "two")]
    assert artifacts[0].verify() == artifacts[1].verify() == []
    assert artifacts[0].digest == artifacts[1].digest


def test_an_index_type_that_milvus_lite_lacks_is_refused(vectors: Artifact, tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    with pytest.raises(QontextError, match="milvus-lite has no index of type 'DISKANN'"):
        api.index(vectors, backend="milvus", kind="DISKANN", out=tmp_path / "index")
    assert not (tmp_path / "index").exists()
