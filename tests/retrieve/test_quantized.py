"""Codes of vectors by hand, and what is kept of the vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qontext import api
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError
from qontext.models.retriever import Retriever
from qontext.retrieve.index.load import open_index
from qontext.serve.systems import Opener

VECTORS = np.array([[2.54, -1.0, 0.0, 0.5], [-1.27, 0.25, 0.0, -0.75], [0.1, 0.5, 0.0, 1.0]], np.float32)
QUERY = np.array([[1.0, 2.0, 5.0, 0.5]], np.float32)


@pytest.fixture
def vectors(make_vectors: Callable[..., Artifact]) -> Artifact:
    return make_vectors("vectors", [(["c", "a"], VECTORS[:2]), (["b"], VECTORS[2:])])


def test_an_int8_code_is_the_multiple_of_a_127th_of_the_greatest_value(
    vectors: Artifact, tmp_path: Path
) -> None:
    artifact = api.index(vectors, backend="int8", rescore="none", out=tmp_path / "index")
    assert np.load(artifact.path / "steps.npy") == pytest.approx([0.02, 1 / 127, 1.0, 1 / 127])
    codes = np.array(
        [[-64, 32, 0, -95], [5, 64, 0, 127], [127, -127, 0, 64]]
    )  # a, b, c: -63.5 and 63.5 to even
    assert np.load(artifact.path / "codes.npy").tolist() == codes.tolist()
    index, _ = open_index(artifact.path)
    numbers, scores = index.search(QUERY, 3)
    expected = codes @ (QUERY[0] * [0.02, 1 / 127, 1.0, 1 / 127])
    assert numbers[0].tolist() == np.argsort(-expected).tolist()
    assert scores[0] == pytest.approx(np.sort(expected)[::-1], rel=1e-5)


def test_a_binary_code_is_the_signs_and_the_best_are_scored_by_their_vectors(
    vectors: Artifact, tmp_path: Path
) -> None:
    codes = api.index(vectors, backend="binary", rescore="none", out=tmp_path / "codes")
    assert np.load(codes.path / "codes.npy").tolist() == [[0b0100_0000], [0b1101_0000], [0b1001_0000]]
    index, _ = open_index(codes.path)
    numbers, scores = index.search(QUERY, 3)
    # Signs of b: + + - +: 1 + 2 - 5 + 0.5; of a: - + - -: -1 + 2 - 5 - 0.5; of c: + - - +: 1 - 2 - 5 + 0.5.
    assert numbers.tolist() == [[1, 0, 2]] and scores[0] == pytest.approx([-1.5, -4.5, -5.5])
    whole = api.index(vectors, backend="binary", rescore="fp16", oversample=2, out=tmp_path / "whole")
    index, _ = open_index(whole.path)
    numbers, scores = index.search(QUERY, 1)
    # Of the two best by signs, b and a, b is the best by its vector; c, which is the best of all (0.79), is missed.
    assert numbers.tolist() == [[1]] and scores[0] == pytest.approx([0.1 + 1.0 + 0.5], rel=1e-3)
    assert np.load(whole.path / "vectors.npy").dtype == np.float16


def test_vectors_beyond_fp16_are_refused_for_rescoring(
    make_vectors: Callable[..., Artifact], tmp_path: Path
) -> None:
    large = make_vectors("large", [(["a", "b"], 1e5 * VECTORS[:2])])
    with pytest.raises(QontextError, match=r"does not fit fp16\. Use --rescore fp32\."):
        api.index(large, backend="int8", rescore="fp16", out=tmp_path / "index")


def test_damage_is_told(vectors: Artifact, tmp_path: Path) -> None:
    artifact = api.index(vectors, backend="int8", out=tmp_path / "index")
    np.save(artifact.path / "codes.npy", np.zeros((3, 5), np.int8))
    with pytest.raises(QontextError, match=r"codes\.npy"):
        open_index(artifact.path)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_cut_vectors_are_searched_with_cut_queries(
    beir: Path, tiny_encoder: Path, minilm: Path, tmp_path: Path, similarity: str
) -> None:
    encoder = tiny_encoder if similarity == "dot" else minilm  # its folder has a normalization
    whole = Retriever(str(encoder), device="cpu", precision="fp32").encode(["river stone"], "query")
    cut = Retriever(str(encoder), device="cpu", precision="fp32", dimensions=5)
    (vector,), expected = cut.encode(["river stone"], "query"), whole[0, :5]
    if similarity == "cosine":
        expected = expected / np.linalg.norm(expected)
    assert vector == pytest.approx(expected, abs=1e-5)
    if similarity == "cosine":
        return
    artifact = api.encode(beir, encoder=encoder, dimensions=5, precision="fp32", out=tmp_path / "vectors")
    assert artifact.summary["dimension"] == 5
    index, _ = open_index(artifact.path)
    numbers, scores = index.search(vector[None], 7)
    (tmp_path / "q.tsv").write_text("q\triver stone\n")
    run = api.retrieve(artifact, queries=tmp_path / "q.tsv", k=7, precision="fp32", out=tmp_path / "run")
    lines = [line.split()[2] for line in (run.path / "run.trec").read_text().splitlines()]
    assert lines == [str(index.ids[n]) for n in numbers[0]]
    (system,) = Opener("cpu", "fp32").open("short", str(artifact.path))
    assert [hit.score for hit in system.search(["river stone"], 7)[0]] == pytest.approx(scores[0], abs=1e-4)
    with pytest.raises(QontextError, match="dimensions = 17, but the encoder's vectors have 16"):
        api.encode(beir, encoder=encoder, dimensions=17, out=tmp_path / "more")
