from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from qontext import api
from qontext.data.runs import read_run
from qontext.frame.errors import QontextError
from qontext.retrieve import search
from qontext.retrieve.search import WORDS
from qontext.retrieve.stored import open_vectors


def test_bm25_writes_a_run_as_file_or_directory(beir: Path, tmp_path: Path) -> None:
    api.retrieve(bm25=True, data=beir, split="test", out=tmp_path / "run.trec")
    searched = api.retrieve(bm25=True, data=beir, split="test", out=tmp_path / "run")
    assert (tmp_path / "run.trec").read_bytes() == (searched.path / "run.trec").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["beir", "run", "run.trec"]
    run = read_run(searched.path)
    assert list(run) == ["q8", "q9", "q10", "q11"] and run["q8"][0].passage == "p40"
    with pytest.raises(QontextError, match="the file already exists"):
        api.retrieve(bm25=True, data=beir, split="test", out=tmp_path / "run.trec")


def test_a_saved_bm25_index_gives_the_same_run(beir: Path, tmp_path: Path) -> None:
    index = api.index(beir, backend="bm25", out=tmp_path / "index")
    a = api.retrieve(index, data=beir, out=tmp_path / "a")
    b = api.retrieve(bm25=True, data=beir, out=tmp_path / "b")
    assert a.digest == b.digest
    assert "computed" not in a.meta, "no model was there"


def test_dense_search_finds_a_passage_by_its_own_text(beir: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    from qontext.data.collection import read_passages

    vectors = api.encode(beir, encoder=tiny_encoder, out=tmp_path / "vectors")
    (tmp_path / "q.tsv").write_text("".join(f"{p.id}\t{p.content}\n" for p in read_passages(beir)))
    searched = api.retrieve(vectors, queries=tmp_path / "q.tsv", k=61, out=tmp_path / "run")
    assert searched.meta["computed"] == vectors.meta["computed"]
    run = read_run(searched.path)
    assert run.size == 60 * 60, "no more results than passages"
    ours = open_vectors(vectors.path)
    scores = np.concatenate(ours.parts) @ np.concatenate(ours.parts).T
    for row, id in enumerate(ours.ids):
        assert run[id][0].score == pytest.approx(scores[row].max(), rel=1e-5)


def test_the_run_of_several_parts_is_that_of_one(
    beir: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = api.encode(beir, encoder=tiny_encoder, out=tmp_path / "vectors")
    for name, settings in {"dense": {"index": vectors}, "words": {"bm25": True}}.items():
        whole = api.retrieve(**settings, data=beir, k=5, out=tmp_path / f"{name} whole")
        monkeypatch.setattr(search, "BLOCK", 5)
        parts = api.retrieve(**settings, data=beir, k=5, out=tmp_path / f"{name} parts")
        monkeypatch.undo()
        assert [path.name for path in parts.parts()] == ["run.trec"] and not (parts.path / WORDS).exists()
        timings = {"seconds": 0, "queries_per_second": 0}
        assert {**parts.summary, **timings} == {**whole.summary, **timings}
        run, expected = read_run(parts.path), read_run(whole.path)
        assert list(run) == list(expected)
        for query in run:
            assert [hit.passage for hit in run[query]] == [hit.passage for hit in expected[query]]
            assert run.results(query)[1] == pytest.approx(expected.results(query)[1], rel=1e-5)


def test_many_queries_make_few_parts() -> None:
    """Each part reads all vectors."""
    counts = (1, 1_024, 7_000, 100_000, 500_000, 10_000_000)
    assert [search.size_for(count, 200) for count in counts] == [1_024, 1_024, 1_024, 13_312, 63_488, 82_944]
    assert search.size_for(10_000_000, 1_000) == 16_384, "results of a part fit into memory"
    assert search.size_for(10_000_000, 10_000_000) == 1_024


def test_the_wrong_encoder_is_told(beir: Path, tiny_encoder: Path, minilm: Path, tmp_path: Path) -> None:
    encoder = shutil.copytree(tiny_encoder, tmp_path / "encoder")
    vectors = api.encode(beir, encoder=encoder, out=tmp_path / "vectors")
    settings = {"data": beir, "split": "test", "out": tmp_path / "run"}
    with pytest.raises(QontextError, match="is not the encoder that encoded the passages"):
        api.retrieve(vectors, encoder=minilm, **settings)
    with pytest.raises(QontextError, match="has 384 dimensions, the index has 16"):
        api.retrieve(vectors, encoder=minilm, untied=True, **settings)
    (encoder / "vocabulary.txt").write_text("changed")
    with pytest.raises(QontextError, match="the encoder of the passages has changed since"):
        api.retrieve(vectors, **settings)
    assert api.retrieve(vectors, encoder=encoder, untied=True, **settings).summary["queries"] == 4


def test_what_cannot_be_searched_is_told(beir: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    queries = api.encode(beir, encoder=tiny_encoder, kind="query", out=tmp_path / "queries")
    with pytest.raises(QontextError, match="holds vectors of queries"):
        api.retrieve(queries, data=beir, out=tmp_path / "run")
    searched = api.retrieve(bm25=True, data=beir, out=tmp_path / "made")
    with pytest.raises(QontextError, match="not searchable: it was written by 'qontext retrieve'"):
        api.retrieve(searched, data=beir, out=tmp_path / "run")
