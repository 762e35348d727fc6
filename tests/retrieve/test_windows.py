"""Windows: a passage has a vector for each of its windows, and the score of the best one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.tiny import WORDS

from qontext import Retriever, api
from qontext.corpus.sentences import counter
from qontext.data.passage import Passage
from qontext.frame.errors import QontextError
from qontext.models.packed import Packed
from qontext.retrieve.encode import WindowEncoder, windows_of
from qontext.retrieve.index.flat import FlatIndex
from qontext.retrieve.index.load import open_index
from qontext.retrieve.stored import open_stored

SIZE = 16


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Passages of one to six sentences, two of them equal, one empty but for its title."""
    dice = np.random.default_rng(0)

    def text(sentences: int) -> str:
        return " ".join(" ".join(dice.choice(WORDS, 7)).capitalize() + "." for _ in range(sentences))

    texts = [text(1 + i % 6) for i in range(40)]
    texts[9] = texts[3]
    rows = [{"_id": f"p{i:02d}", "title": f"Chapter {i % 3}", "text": text} for i, text in enumerate(texts)]
    rows.append({"_id": "title", "title": "Only a title", "text": ""})
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def reference(corpus: Path, encoder: Path, queries: Any) -> tuple[list[str], Any]:
    """The ids, ascending, and the score of each query with each passage's best window."""
    rows = sorted(map(json.loads, corpus.read_text("utf-8").splitlines()), key=lambda row: row["_id"])
    retriever = Retriever(encoder, precision="fp32")
    count = counter(str(encoder))
    scores = []
    for row in rows:
        windows = [f"{row['title']} {window}" for window in windows_of(row["text"], SIZE, count)]
        scores.append((queries @ retriever.encode(windows, "passage").T).max(1))
    return [row["_id"] for row in rows], np.stack(scores, 1)


def encode(corpus: Path, encoder: Path, out: Path, **settings: Any) -> Any:
    return api.encode(corpus, encoder=encoder, window=SIZE, precision="fp32", out=out, **settings)


@pytest.mark.parametrize("searched_by", ["search", "scan"])
def test_a_passage_has_the_score_of_its_best_window(
    corpus: Path, tiny_encoder: Path, tmp_path: Path, searched_by: str
) -> None:
    artifact = encode(corpus, tiny_encoder, tmp_path / "vectors")
    questions = ["the mill grinds flour", "bread from the oven", "a boat on the river"]
    queries = Retriever(tiny_encoder, precision="fp32").encode(questions, "query")
    ids, expected = reference(corpus, tiny_encoder, queries)
    stored = open_stored(artifact.path)
    assert artifact.summary["window"] == SIZE
    assert artifact.summary["entries_per_text"] > 1.5
    index: Any = open_index(artifact.path)[0] if searched_by == "search" else FlatIndex(stored)
    assert index.dimension == 16 and list(index.ids) == ids
    numbers, scores = index.search(queries, 10)
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :10], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(expected, numbers, 1), scores, atol=1e-5)

    some = np.arange(len(ids)) % 3 == 1
    numbers, scores = index.search(queries, 100, some)
    assert numbers.shape == (3, some.sum()) and some[numbers].all()
    np.testing.assert_allclose(scores, -np.sort(-expected[:, some], axis=1), atol=1e-5)


def test_equal_passages_have_equal_scores(corpus: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    """p03 and p09 have the same text and title; the smaller id comes first."""
    index, _ = open_index(encode(corpus, tiny_encoder, tmp_path / "vectors").path)
    numbers, scores = index.search(np.random.default_rng(1).standard_normal((20, 16)).astype(np.float32), 41)
    for row, own in zip(numbers.tolist(), scores):
        first, second = row.index(3), row.index(9)
        assert second == first + 1 and own[first] == own[second]


def test_blocks_do_not_change_results(
    corpus: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, _ = open_index(encode(corpus, tiny_encoder, tmp_path / "vectors").path)
    queries = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    whole = index.search(queries, 20)
    monkeypatch.setattr("qontext.retrieve.index.exact._BLOCK", 3)
    index.width = 2
    parts = index.search(queries, 20)
    assert np.array_equal(whole[0], parts[0])
    np.testing.assert_allclose(whole[1], parts[1], atol=1e-6)


def test_windows_are_searched_like_vectors(beir: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    """With windows larger than every text, a run is that of one vector for each passage."""
    settings: dict[str, Any] = {"encoder": tiny_encoder, "precision": "fp32"}
    runs = []
    for name, more in (("one", {}), ("windows", {"window": 64})):
        api.encode(beir, **settings, **more, out=tmp_path / name)
        run = api.retrieve(tmp_path / name, data=beir, split="test", k=10, out=tmp_path / f"run-{name}")
        runs.append(api.evaluate(run, qrels=beir, split="test", out=tmp_path / f"score-{name}").summary)
    assert runs[0] == runs[1]


def test_windows_of_unchanged_passages_are_reused(corpus: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    old = encode(corpus, tiny_encoder, tmp_path / "old")
    rows = [json.loads(line) for line in corpus.read_text("utf-8").splitlines()]
    rows[5]["text"] = "Another text. " * 9
    rows.insert(0, {"_id": "new", "title": "", "text": "A new one."})
    del rows[20]
    changed = tmp_path / "changed.jsonl"
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    again = encode(changed, tiny_encoder, tmp_path / "again", reuse=old.path)
    assert (again.summary["encoded_now"], again.summary["reused"]) == (2, len(rows) - 2)
    fresh = encode(changed, tiny_encoder, tmp_path / "fresh")
    for mine, expected in zip(*(open_stored(artifact.path).parts for artifact in (again, fresh))):
        assert isinstance(mine, Packed) and isinstance(expected, Packed)
        assert np.array_equal(mine.starts, expected.starts)
        np.testing.assert_allclose(mine.values, expected.values, atol=1e-5)
    one = api.encode(changed, encoder=tiny_encoder, reuse=old.path, precision="fp32", out=tmp_path / "one")
    assert one.summary["reused"] == 0, "a passage's vector is no window's"
    other = api.encode(
        changed, encoder=tiny_encoder, window=32, reuse=old.path, precision="fp32", out=tmp_path / "other"
    )
    assert other.summary["reused"] == 0


def test_windows_are_exported(corpus: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    vectors = encode(corpus, tiny_encoder, tmp_path / "vectors")
    exported = api.export(vectors, out=tmp_path / "exported")
    rows = pq.read_table(exported.path / "part-00000.parquet").to_pylist()
    (part,) = open_stored(vectors.path).parts
    assert isinstance(part, Packed) and [len(row["vectors"]) for row in rows] == part.lengths.tolist()
    assert np.array_equal(np.concatenate([row["vectors"] for row in rows]).astype(np.float32), part.values)


def test_shards_write_the_same(
    corpus: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qontext.retrieve.encode.BLOCK", 9)
    whole = encode(corpus, tiny_encoder, tmp_path / "whole")
    encode(corpus, tiny_encoder, tmp_path / "parts", shard="1/2")
    parts = encode(corpus, tiny_encoder, tmp_path / "parts", shard="0/2")
    assert parts.digest == whole.digest


def test_a_damaged_vector_is_refused(corpus: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    artifact = encode(corpus, tiny_encoder, tmp_path / "vectors")
    file = artifact.path / "vectors-00000.npy"
    values = np.load(file)
    starts = np.load(artifact.path / "starts-00000.npy")
    values[starts[7]] = np.nan
    np.save(file, values)
    queries = np.ones((2, 16), np.float32)
    with pytest.raises(QontextError, match="vector of 'p07' is not finite"):
        FlatIndex(open_stored(artifact.path)).search(queries, 3)


def test_where_windows_do_not_apply(
    corpus: Path, tiny_encoder: Path, beir: Path, tmp_path: Path, make_vectors: Callable[..., Any]
) -> None:
    with pytest.raises(QontextError, match="need --kind passage"):
        api.encode(beir, encoder=tiny_encoder, kind="query", window=16, out=tmp_path / "queries")
    vectors = encode(corpus, tiny_encoder, tmp_path / "vectors")
    with pytest.raises(QontextError, match="representation 'windows', not vector"):
        api.index(vectors, backend="faiss", out=tmp_path / "index")


def test_windows_fit_in_the_tokens_of_the_encoder(tiny_encoder: Path) -> None:
    """Also where a word has many tokens, or a sentence no spaces."""
    encoder = WindowEncoder(Retriever(tiny_encoder), 32)
    sentence = "Unbelievably antidisestablishmentarian floccinaucinihilipilification. "
    texts = [sentence * 8, "磨坊在河邊。它磨麵粉。" * 20]
    for windows in encoder.tokenize([Passage("a", "", text, "a") for text in texts], "passage"):
        assert len(windows) > 4 and all(len(window) <= 32 * 4 / 3 for window in windows)


def test_a_window_is_no_longer_than_what_the_encoder_reads(tiny_encoder: Path) -> None:
    retriever = Retriever(tiny_encoder, max_length=32)
    assert WindowEncoder(retriever, 32).size == 32
    with pytest.raises(QontextError, match="a window of 100,000 tokens is longer than the 32"):
        WindowEncoder(retriever, 100_000)


def test_a_text_is_cut_at_ends_of_sentences() -> None:
    sentences = [
        "The mill stands by the old river.",
        "It grinds flour.",
        "A boat is made of wood and rope here.",
        "So.",
    ]
    assert windows_of(" ".join(sentences), 13) == [
        "The mill stands by the old river.",
        "It grinds flour.",
        "A boat is made of wood and rope here. So.",
    ]
    assert windows_of(" ".join(sentences), 100) == [" ".join(sentences)]
    assert windows_of("", 16) == [""] and windows_of("   ", 16) == ["   "]
    long = " ".join(WORDS * 20)
    windows = windows_of(long, 16)
    assert " ".join(windows) == long and all(len(window.split()) <= 14 for window in windows[:-1])
