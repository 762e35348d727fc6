"""Residual compression by hand, and what a search over it finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.retrieve.conftest import write_tokens

from qontext import api
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError
from qontext.models.packed import Packed
from qontext.retrieve.index import residual
from qontext.retrieve.index.load import open_index
from qontext.retrieve.index.residual import Codec, ResidualIndex, default_centroids
from qontext.retrieve.stored import open_stored

TWO = np.array([[1.0, 0.0], [0.0, -1.0]], np.float32)
TOPICS, DIMENSIONS = 40, 16


def array(*values: float) -> Any:
    return np.array(values, np.float32)


@pytest.mark.parametrize("normalized", [False, True])
def test_two_bits_of_each_dimension(normalized: bool) -> None:
    codec = Codec(TWO, array(-0.5, 0.0, 0.5), array(-0.75, -0.25, 0.25, 0.75), normalized)
    vectors = array(1.3, -0.7, 0.5, 0.1, -0.5, -1.6, 0.0, -1.0).reshape(4, 2)
    centroids, codes = codec.encode(vectors)
    assert centroids.tolist() == [0, 0, 1, 1]
    # Residuals (0.3, -0.7), (-0.5, 0.1), (-0.5, -0.6), (0, 0): buckets (2, 0), (0, 2), (0, 0), (1, 1).
    assert codes.tolist() == [[0b1000_0000], [0b0010_0000], [0b0000_0000], [0b0101_0000]]
    expected = array(1.25, -0.75, 0.25, 0.25, -0.75, -1.75, -0.25, -1.25).reshape(4, 2)
    if normalized:
        expected /= np.sqrt((expected**2).sum(1, keepdims=True))
    np.testing.assert_allclose(codec.decode(centroids, codes), expected, rtol=1e-6)


def test_one_bit_of_each_dimension() -> None:
    codec = Codec(TWO, array(0.0), array(-0.25, 0.25), False)
    centroids, codes = codec.encode(array(1.3, -0.4, 0.1, -1.6).reshape(2, 2))
    assert centroids.tolist() == [0, 1] and codes.tolist() == [[0b1000_0000], [0b1000_0000]]
    expected = array(1.25, -0.25, 0.25, -1.25).reshape(2, 2)
    assert codec.decode(centroids, codes).tolist() == expected.tolist()


@pytest.mark.parametrize(("bits", "dimensions", "width"), [(1, 16, 2), (2, 16, 4), (1, 9, 2), (2, 9, 3)])
def test_a_residual_has_bits_times_dimensions(bits: int, dimensions: int, width: int) -> None:
    buckets = 2**bits
    edges, values = np.linspace(-1, 1, buckets - 1), np.linspace(-2, 2, buckets)
    codec = Codec(np.zeros((1, dimensions), np.float32), edges.astype("f"), values.astype("f"), False)
    restored = np.random.default_rng(1).choice(codec.values, (50, dimensions))
    centroids, codes = codec.encode(restored)
    assert (codec.bits, codec.width) == (bits, width) and codes.shape == (50, width)
    assert codec.decode(centroids, codes).tolist() == restored.tolist()


def test_buckets_have_equal_shares_of_the_residuals() -> None:
    sample = (100 + np.arange(9))[:, None].astype(np.float32)
    for bits, edges, values in ((1, [4], [2, 6]), (2, [2, 4, 6], [1, 3, 5, 7])):
        codec = Codec.fit(torch.tensor([[100.0], [300.0]]), sample, bits)
        assert codec.edges.tolist() == edges and codec.values.tolist() == values
        assert not codec.normalized and codec.bits == bits
    assert Codec.fit(torch.from_numpy(TWO), TWO[::-1].copy(), 2).normalized


def test_the_number_of_centroids_is_a_power_of_two_near_16_roots() -> None:
    assert [default_centroids(tokens) for tokens in (1, 600, 1_000_000, 600_000_000)] == [
        16,
        256,
        8192,
        262_144,
    ]


def clustered(lengths: list[int], seed: int) -> Packed:
    """Texts about two topics each, whose tokens are near the vectors of these topics; of norm 1."""
    rng = np.random.default_rng(seed)
    topics = np.random.default_rng(0).standard_normal((TOPICS, DIMENSIONS))
    own = np.concatenate([rng.choice(rng.choice(TOPICS, 2), length) for length in lengths])
    vectors = topics[own] + 0.5 * rng.standard_normal((len(own), DIMENSIONS))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Packed(np.cumsum([0, *lengths]), vectors.astype(np.float32))


@pytest.fixture(scope="module")
def passages() -> Packed:
    return clustered(np.random.default_rng(2).integers(1, 20, 400).tolist(), 3)


@pytest.fixture(scope="module")
def queries() -> Packed:
    return clustered([8] * 30, 4)


@pytest.fixture(scope="module")
def tokens(passages: Packed, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Two parts whose ids are not in order."""
    ids = [f"p{i:03d}" for i in range(400)]
    parts = [(ids[250:], passages[250:]), (ids[:250], passages[:250])]
    return write_tokens(tmp_path_factory.mktemp("residual") / "tokens", parts)


def built(tokens: Artifact, out: Path, **settings: Any) -> ResidualIndex:
    index, _ = open_index(api.index(tokens, backend="residual", out=out, **settings).path)
    assert isinstance(index, ResidualIndex)
    return index


def max_sim(queries: Packed, passages: Packed) -> Any:
    """[Q, P], one pair at a time."""

    def texts(packed: Packed) -> list[Any]:
        return [packed[n : n + 1].values for n in range(len(packed))]

    return np.array([[(q @ p.T).max(1).sum() for p in texts(passages)] for q in texts(queries)])


@pytest.mark.parametrize("bits", [1, 2])
def test_all_lists_give_the_maxsim_of_the_restored_vectors(
    tokens: Artifact, passages: Packed, queries: Packed, tmp_path: Path, bits: int
) -> None:
    index = built(tokens, tmp_path / "index", bits=bits, centroids=32, probes=32)
    assert index.codec.normalized and index.codec.bits == bits
    restored = index.codec.decode(index.tokens.values, index.residuals.values)
    np.testing.assert_allclose(np.linalg.norm(restored, axis=1), 1, rtol=1e-5)
    assert (restored * passages.values).sum(1).mean() > (0.9, 0.96)[bits - 1]
    expected = max_sim(queries, Packed(passages.starts, restored))
    numbers, scores = index.search(queries, 400)
    np.testing.assert_allclose(scores, np.take_along_axis(expected, numbers, 1), rtol=1e-5, atol=1e-5)
    assert all(sorted(row) == list(range(400)) for row in numbers.tolist())
    assert (np.diff(scores, axis=1) <= 0).all()


def test_few_lists_find_most_of_the_best(
    tokens: Artifact, passages: Packed, queries: Packed, tmp_path: Path
) -> None:
    best = np.argsort(-max_sim(queries, passages), axis=1)[:, :10]

    def recall(index: ResidualIndex) -> float:
        numbers, _ = index.search(queries, 10)
        return float(np.mean([len({*a} & {*b}) / 10 for a, b in zip(numbers.tolist(), best.tolist())]))

    index = built(tokens, tmp_path / "index", centroids=64)
    assert recall(index) > 0.8
    index.candidates = 40
    assert recall(index) > 0.8
    index.candidates, index.probes = 10, 1
    assert recall(index) < 0.6, "few candidates by centroids alone are not the best"


def test_candidates_are_the_best_by_the_centroids_near_the_query() -> None:
    codec = Codec(np.eye(3, dtype=np.float32), array(0.0), array(-0.25, 0.25), False)
    # Passage 0 has centroids 0 and 1, passage 1 has 1, passage 2 has 2, passage 3 has 0 and 2.
    tokens = Packed(np.array([0, 2, 3, 4, 6]), np.array([0, 1, 1, 2, 0, 2], np.uint8))
    lists = Packed(np.array([0, 2, 4, 6]), np.array([0, 3, 0, 1, 2, 3], np.uint8))
    residuals = Packed(tokens.starts, np.zeros((6, 1), np.uint8))
    index = ResidualIndex(np.array([*"abcd"], object), codec, tokens, residuals, lists, 2, 2)
    scores_IC = torch.tensor([[0.9, 0.5, 0.1], [0.2, 0.3, 0.4]])
    numbers, scores = index._near(scores_IC, 2, None)
    # The first token reads lists 0 and 1, the second 2 and 1.
    assert numbers.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(scores, [0.9 + 0.3, 0.5 + 0.3, 0.4, 0.9 + 0.4], rtol=1e-6)
    assert index._candidates(scores_IC, 1, None).tolist() == [0, 3], "the best two"
    assert index._near(scores_IC, 1, np.array([False, True, True, True]))[0].tolist() == [2, 3]
    index.probes = 1
    assert index._candidates(scores_IC, 4, None).tolist() == [0, 1, 2, 3], "as many lists as the results need"


def test_a_token_has_a_centroid_and_its_bits_and_a_build_is_the_same_twice(
    tokens: Artifact, passages: Packed, tmp_path: Path
) -> None:
    artifacts = [
        api.index(tokens, backend="residual", centroids=300, out=tmp_path / name) for name in ("one", "two")
    ]
    assert artifacts[0].digest == artifacts[1].digest
    sizes = {path.name: path.stat().st_size for path in artifacts[0].parts(".npy")}
    header, count = 128, len(passages.values)
    assert sizes["residuals.npy"] == header + count * 2 * DIMENSIONS // 8
    assert sizes["tokens.npy"] == header + count * 2, "300 centroids need two bytes"
    assert sizes["lists.npy"] <= header + count * 2
    other = api.index(tokens, backend="residual", centroids=300, seed=7, out=tmp_path / "other")
    assert other.digest != artifacts[0].digest


def test_lists_made_in_blocks_are_the_same(
    tokens: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = built(tokens, tmp_path / "whole", centroids=32)
    monkeypatch.setattr(residual, "_LISTED", 7)
    monkeypatch.setattr(residual, "_PASSAGES", 7)
    parts = built(tokens, tmp_path / "parts", centroids=32)
    assert whole.lists.starts.tolist() == parts.lists.starts.tolist()
    assert whole.lists.values.tolist() == parts.lists.values.tolist()
    for centroid in range(32):
        own = whole.lists[centroid : centroid + 1].values.tolist()
        passage = np.repeat(np.arange(400), whole.tokens.lengths)
        assert own == sorted({*passage[whole.tokens.values == centroid].tolist()})


def test_a_build_that_was_interrupted_keeps_its_centroids(
    tokens: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"backend": "residual", "centroids": 32}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Codec, "encode", interrupted)
        api.index(tokens, out=tmp_path / "index", **settings)
    monkeypatch.setattr(residual, "k_means", interrupted)
    resumed = api.index(tokens, out=tmp_path / "index", **settings)
    monkeypatch.undo()
    assert resumed.digest == api.index(tokens, out=tmp_path / "whole", **settings).digest


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_one_vector_of_each_passage_is_refused(
    make_vectors: Callable[..., Artifact], tokens: Artifact, tmp_path: Path
) -> None:
    vectors = make_vectors("vectors", [(["a", "b"], np.eye(2, dtype=np.float32))])
    with pytest.raises(QontextError, match="the representation 'vector', not tokens"):
        api.index(vectors, backend="residual", out=tmp_path / "index")
    with pytest.raises(QontextError, match="the representation 'tokens', not vector"):
        api.index(tokens, backend="faiss-hnsw", out=tmp_path / "index")
    assert not (tmp_path / "index").exists()
    assert len(open_stored(tokens.path)) == 400


def test_damage_is_told(tokens: Artifact, tmp_path: Path) -> None:
    artifact = api.index(tokens, backend="residual", centroids=32, out=tmp_path / "index")
    starts = np.load(artifact.path / "starts.npy")
    np.save(artifact.path / "starts.npy", starts - 1)
    with pytest.raises(QontextError, match=r"starts\.npy: damaged: it does not cover"):
        open_index(artifact.path)
    np.save(artifact.path / "starts.npy", starts)
    np.save(artifact.path / "residuals.npy", np.zeros((len(starts), 9), np.uint8))
    with pytest.raises(QontextError, match=r"residuals\.npy"):
        open_index(artifact.path)


def test_a_passage_without_tokens_is_not_found() -> None:
    codec = Codec(TWO, array(0.0), array(-0.25, 0.25), False)
    starts, lists = np.array([0, 1, 1]), Packed(np.array([0, 1, 1]), np.array([0], np.uint8))
    tokens, residuals = np.array([0], np.uint8), np.zeros((1, 1), np.uint8)
    index = ResidualIndex(
        np.array(["a", "b"]), codec, Packed(starts, tokens), Packed(starts, residuals), lists, 9, 10
    )
    numbers, _ = index.search(Packed(np.array([0, 1]), array(1.0, 0.0).reshape(1, 2)), 2)
    assert numbers.tolist() == [[0, -1]]
