"""Exported vectors: whole, in readable columns, with their own passages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from qontext import api
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError
from qontext.retrieve.stored import open_vectors


@pytest.fixture
def passages(tmp_path: Path) -> Artifact:
    """Passages with places."""
    folder = tmp_path / "docs" / "guide"
    folder.mkdir(parents=True)
    for number in range(5):
        text = f"# Chapter {number}\n\nThe first paragraph of ä {number}.\n"
        (folder / f"file{number}.md").write_text(text, encoding="utf-8")
    return api.split(tmp_path / "docs", workers=1, out=tmp_path / "passages")


@pytest.mark.parametrize("storage", ["fp32", "fp16"])
def test_rows_are_passages_with_their_vectors(
    passages: Artifact, tiny_encoder: Path, tmp_path: Path, storage: str
) -> None:
    vectors = api.encode(passages, encoder=tiny_encoder, storage=storage, out=tmp_path / "vectors")
    exported = api.export(vectors, out=tmp_path / "exported")
    table = pq.read_table(exported.part("part-00000.parquet"))
    assert table.column_names == ["id", "document", "title", "text", "vector", "place", "metadata"]
    rows = {row["id"]: row for row in table.to_pylist()}
    assert exported.summary["passages"] == len(rows) == 5 and exported.summary["dimension"] == 16
    loaded = open_vectors(vectors.path)
    for id, vector in zip(loaded.part_ids[0].to_pylist(), loaded.parts[0]):
        assert np.array_equal(np.float32(rows[id]["vector"]), vector.astype(np.float32))
    row = next(row for row in rows.values() if "ä 3" in row["text"])
    assert row["document"] == "guide/file3.md" and row["title"].endswith("Chapter 3")
    assert row["place"] == "guide/file3.md, line 3"
    assert json.loads(row["metadata"])["folder"] == "guide"


def test_parts_that_are_there_are_kept(beir: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    from qontext.retrieve import encode

    block, encode.BLOCK = encode.BLOCK, 25
    try:
        vectors = api.encode(beir, encoder=tiny_encoder, out=tmp_path / "vectors")
    finally:
        encode.BLOCK = block
    exported = api.export(vectors, out=tmp_path / "exported")
    assert [pq.read_metadata(part).num_rows for part in exported.parts(".parquet")] == [25, 25, 10]
    # As if it had been killed before its second part.
    whole = exported.digest
    (exported.path / "meta.json").rename(exported.path / "claim.json")
    (exported.path / "part-00001.parquet").unlink()
    first = exported.path / "part-00000.parquet"
    before = first.stat().st_mtime_ns
    assert api.export(vectors, out=exported.path).digest == whole and first.stat().st_mtime_ns == before


def test_an_index_stands_for_its_vectors(beir: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed")
    vectors = api.encode(beir, encoder=tiny_encoder, out=tmp_path / "vectors")
    index = api.index(vectors, backend="faiss-hnsw", out=tmp_path / "index")
    one, two = (api.export(source, out=tmp_path / f"of-{source.verb}") for source in (vectors, index))
    assert one.digest == two.digest


def test_what_cannot_be_exported(
    beir: Path, tiny_encoder: Path, tmp_path: Path, make_vectors: Callable[..., Artifact]
) -> None:
    words = api.index(beir, backend="bm25", out=tmp_path / "words")
    with pytest.raises(QontextError, match=r"words: holds no vectors\. Give the output of 'qontext encode'"):
        api.export(words, out=tmp_path / "out")
    vectors = make_vectors("strange", [(["p1", "p2"], np.ones((2, 4), np.float32))])
    with pytest.raises(QontextError, match=r"does not record its passages\. Name them with --passages"):
        api.export(vectors, out=tmp_path / "out")
    with pytest.raises(QontextError, match="does not hold the passages that were encoded"):
        api.export(vectors, passages=beir, out=tmp_path / "out")
    queries = api.encode(beir, kind="query", encoder=tiny_encoder, out=tmp_path / "queries")
    with pytest.raises(QontextError, match="holds vectors of queries"):
        api.export(queries, out=tmp_path / "out")
