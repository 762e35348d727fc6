"""Several vectors of a passage, one of a query, as ME-BERT: by hand, then as candidates' vectors of a reranking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qontext import api
from qontext.baselines.me_bert import FirstTokens
from qontext.data.runs import read_run
from qontext.models.encoder import load_encoder
from qontext.models.folder import read_layout
from qontext.models.representations.base import Lengths
from qontext.models.retriever import Retriever

Finetune = Callable[..., Any]


def test_vectors_and_scores_are_those_of_the_equation(start: Path) -> None:
    encoder, model = load_encoder(str(start)).eval(), FirstTokens(4)
    ids = torch.randint(5, 60, (4, 6), generator=torch.Generator().manual_seed(0))
    lengths = (6, 5, 3, 2)
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    with torch.inference_mode():
        queries, passages = (model(encoder, ids, mask, are_queries) for are_queries in (True, False))
        hidden = [encoder(ids[row : row + 1, :n], None)[0][0] for row, n in enumerate(lengths)]
        scores = model.similarity(queries, passages)
    for row, n in enumerate(lengths):
        torch.testing.assert_close(passages[row, :n], hidden[row][:4], atol=1e-5, rtol=1e-4)
        assert not passages[row, n:].any() and not queries[row, 1:].any()
        expected = [max(float(hidden[row][0] @ vector) for vector in other[:4]) for other in hidden]
        assert scores[row].tolist() == pytest.approx(expected, rel=1e-4)
    assert model.pack(passages).lengths.tolist() == [4, 4, 3, 2]
    assert model.pack(queries).lengths.tolist() == [1] * 4
    negative = model.similarity(-passages, passages)[:, 3]
    assert (negative < 0).all(), "a vector that a short passage does not have is not better than its own"


def test_a_folder_says_how_many_vectors_a_passage_has(start: Path, tmp_path: Path) -> None:
    encoder = load_encoder(str(start))
    FirstTokens(2).save(encoder, tmp_path, Lengths(8, 16), max_length=16)
    assert read_layout(tmp_path).representation == "first-tokens"
    model = Retriever(tmp_path, device="cpu", precision="fp32", packed=True)
    assert model.encode(["a river of bread"], "passage").lengths.tolist() == [2]


def test_stored_vectors_rerank_as_they_are_searched(finetune: Finetune, beir: Path, tmp_path: Path) -> None:
    retriever = finetune(tmp_path / "retriever", representation="first-tokens", steps=5)
    on: dict[str, Any] = {"data": beir, "precision": "fp32", "device": "cpu"}
    vectors = api.encode(
        beir, encoder=retriever.path, precision="fp32", device="cpu", out=tmp_path / "vectors"
    )
    assert vectors.summary["entries_per_text"] == 3
    whole = read_run(api.retrieve(vectors.path, split="dev", k=60, **on, out=tmp_path / "run").path)
    bm25 = api.retrieve(bm25=True, data=beir, split="dev", k=20, out=tmp_path / "bm25")
    again = read_run(api.rerank(bm25.path, tokens=vectors.path, **on, out=tmp_path / "again").path)
    for query in again:
        scores = {hit.passage: hit.score for hit in whole[query]}
        assert [hit.score for hit in again[query]] == pytest.approx(
            [scores[hit.passage] for hit in again[query]], rel=1e-4
        )
