"""Prompts that are given to `encode` are those of whoever searches its vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tiny import WORDS, save_bert, save_sentence_bert, write_collection

from qontext import api
from qontext.models.retriever import Retriever
from qontext.serve.systems import Opener

FORM: dict[str, Any] = {"device": "cpu", "precision": "fp32"}
TEXTS = [" ".join(WORDS[(number + place) % len(WORDS)] for place in range(6)) for number in range(6)]
QUERY = " ".join(WORDS[2:5])
WEB, PASSAGE = "search the web: ", "passage: "


@pytest.fixture
def encoder(minilm: Path, tmp_path: Path) -> Path:
    """An encoder whose folder names two instructions and uses neither by default."""
    folder = save_sentence_bert(
        tmp_path / "encoder", minilm, max_position_embeddings=64, initializer_range=0.3
    )
    named = {"prompts": {"sts": "same meaning: ", "web": WEB}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(named))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    passages = [{"_id": f"p{number}", "title": "", "text": text} for number, text in enumerate(TEXTS)]
    return write_collection(tmp_path / "data", passages, [{"_id": "q", "text": QUERY}], {"test": {"q": "p2"}})


def _scores(run: Any) -> dict[str, float]:
    rows = [line.split() for line in (Path(run) / "run.trec").read_text().splitlines()]
    return {row[2]: float(row[4]) for row in rows}


def test_search_and_serve_read_queries_as_the_vectors_say(encoder: Path, data: Path, tmp_path: Path) -> None:
    prompted = Retriever(encoder, **FORM, prompts={"query": "web", "passage": PASSAGE})
    passages, queries = prompted.encode_passages(TEXTS), prompted.encode_queries([QUERY])
    assert np.abs(queries - Retriever(encoder, **FORM).encode_queries([QUERY])).max() > 1e-3
    expected = {f"p{number}": float(score) for number, score in enumerate((queries @ passages.T)[0])}

    given = {"query_prompt": "web", "passage_prompt": PASSAGE}
    vectors = api.encode(data, encoder=encoder, out=tmp_path / "vectors", tokens=True, **given, **FORM)
    assert vectors.summary["prompts"] == {"query": WEB, "passage": PASSAGE}
    asked = api.encode(
        data, encoder=encoder, kind="query", query_prompt="web", out=tmp_path / "asked", **FORM
    )
    np.testing.assert_allclose(np.load(asked.path / "vectors-00000.npy"), queries, atol=1e-6)
    index = api.index(vectors, backend="faiss-hnsw", out=tmp_path / "index")
    for number, searched in enumerate((vectors, index)):
        run = api.retrieve(searched, data=data, k=6, out=tmp_path / f"run-{number}", **FORM)
        assert _scores(run.path) == pytest.approx(expected, abs=1e-4)
        (served,) = Opener(**FORM).open("mine", str(searched.path))
        assert served.encoder is not None
        np.testing.assert_allclose(served.encoder.encode([QUERY], "query"), queries, atol=1e-6)
        np.testing.assert_allclose(served.encoder.encode(TEXTS[:1], "passage"), passages[:1], atol=1e-6)


def test_queries_have_the_pooling_of_the_vectors(minilm: Path, data: Path, tmp_path: Path) -> None:
    """That of a folder without modules is [CLS], unless `encode --pooling` says otherwise."""
    bare = save_bert(tmp_path / "bare", minilm, max_position_embeddings=64, initializer_range=0.3)
    mean = Retriever(bare, **FORM, pooling="mean")
    passages, queries = mean.encode_passages(TEXTS), mean.encode_queries([QUERY])
    expected = {f"p{number}": float(score) for number, score in enumerate((queries @ passages.T)[0])}

    vectors = api.encode(data, encoder=bare, out=tmp_path / "vectors", pooling="mean", **FORM)
    index = api.index(vectors, backend="faiss-hnsw", out=tmp_path / "index")
    for number, searched in enumerate((vectors, index)):
        run = api.retrieve(searched, data=data, k=6, out=tmp_path / f"run-{number}", **FORM)
        assert _scores(run.path) == pytest.approx(expected, abs=1e-4)
        (served,) = Opener(**FORM).open("mine", str(searched.path))
        assert served.encoder is not None
        np.testing.assert_allclose(served.encoder.encode([QUERY], "query"), queries, atol=1e-6)


def test_tokens_are_compared_with_the_prompted_query(encoder: Path, data: Path, tmp_path: Path) -> None:
    """The prompt is part of the query that the tokens see."""
    runs = {}
    for name, given in {"plain": {}, "prompted": {"query_prompt": WEB}}.items():
        vectors = api.encode(data, encoder=encoder, tokens=True, out=tmp_path / name, **given, **FORM)
        first = api.retrieve(data=data, bm25=True, k=6, out=tmp_path / f"{name}-bm25")
        again = api.rerank(first, tokens=vectors, data=data, out=tmp_path / f"{name}-tokens", **FORM)
        runs[name] = _scores(again.path)
    assert runs["plain"].keys() == runs["prompted"].keys() and runs["plain"] != runs["prompted"]
