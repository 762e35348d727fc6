"""Bits of tokens: the best passages of a search, compared with the query token by token."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny import WORDS
from transformers import AutoModel, AutoTokenizer

from qontext import Retriever, api
from qontext.corpus.sentences import counter
from qontext.data.load import load_passages
from qontext.data.runs import Run, read_run
from qontext.frame.errors import QontextError
from qontext.models.light import open_light
from qontext.models.packed import Packed
from qontext.retrieve.encode import windows_of
from qontext.retrieve.query_encoder import QueryEncoder
from qontext.retrieve.scorers import TokenScorer, bits_of, similarities
from qontext.retrieve.stored import open_bits, open_stored

QUESTIONS = {"q0": "the mill grinds flour", "q1": "bread from the oven", "q2": "a boat on the river"}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Passages of different lengths, two of them equal, one empty but for its title; ids are not in order."""
    dice = np.random.default_rng(0)
    texts = [" ".join(dice.choice(WORDS, 3 + 4 * (i % 6))) for i in range(40)]
    texts[9] = texts[3]
    rows = [{"_id": f"p{39 - i:02d}", "title": f"Chapter {i % 3}", "text": t} for i, t in enumerate(texts)]
    rows.append({"_id": "empty", "title": "", "text": " "})
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    queries = [{"_id": name, "text": text} for name, text in QUESTIONS.items()]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries), "utf-8")
    return folder


@functools.cache
def load(encoder: Path) -> tuple[Any, Any]:
    return AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()


def token_vectors(encoder: Path, text: str) -> Any:
    """[T, H] straight from transformers, without the first and the last token."""
    tokenizer, model = load(encoder)
    ids = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        vectors = model(**ids).last_hidden_state[0].numpy()
    return vectors if len(vectors) == 2 else vectors[1:-1]


def reference(encoder: Path, question: str, passage: str) -> float:
    """The equation."""
    query, tokens = token_vectors(encoder, question), token_vectors(encoder, passage)
    query /= np.linalg.norm(query, axis=1, keepdims=True)
    best = [max(float(e @ np.where(t > 0, 1, -1)) for t in tokens) for e in query]
    return float(np.mean(best) / np.sqrt(tokens.shape[1]))


def encode(corpus: Path, encoder: Path, out: Path, **settings: Any) -> Any:
    return api.encode(corpus, encoder=encoder, tokens=True, precision="fp32", out=out, **settings)


def rows_of(corpus: Path) -> dict[str, str]:
    rows = map(json.loads, (corpus / "corpus.jsonl").read_text("utf-8").splitlines())
    return {row["_id"]: f"{row['title']} {row['text']}".strip() for row in rows}


def test_a_run_is_reranked_by_the_equation(corpus: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    bits = encode(corpus, tiny_encoder, tmp_path / "bits")
    assert bits.summary["token_bytes"] == 2 and bits.summary["dimension"] == 16
    texts = rows_of(corpus)
    run = Run.of([hit for name in QUESTIONS for hit in _hits(name, sorted(texts))])
    run.write(tmp_path / "run.trec")
    ranked = api.rerank(
        tmp_path / "run.trec", tokens=bits, data=corpus, precision="fp32", device="cpu", out=tmp_path / "out"
    )
    reranked = read_run(ranked.path)
    for name, question in QUESTIONS.items():
        assert {hit.passage for hit in reranked[name]} == set(texts)
        for hit in reranked[name]:
            assert hit.score == pytest.approx(reference(tiny_encoder, question, texts[hit.passage]), abs=1e-5)


def _hits(query: str, ids: list[str]) -> Any:
    from qontext.data.records import Hit

    return [Hit(query, id, 1.0 / rank) for rank, id in enumerate(ids, 1)]


def test_signs_and_products() -> None:
    dice = np.random.default_rng(1)
    vectors, query = (dice.standard_normal((n, 20)).astype(np.float32) for n in (7, 3))
    packed = Packed(np.array([0, 2, 7]), bits_of(vectors))
    assert packed.values.shape == (7, 3) and packed.values.dtype == np.uint8
    signs = np.where(vectors > 0, 1, -1)
    products = query @ signs.T / np.sqrt(20)
    expected = [products[:, :2].max(1).mean(), products[:, 2:].max(1).mean()]
    np.testing.assert_allclose(similarities(query, packed), expected, rtol=1e-5)


def test_the_light_encoder_has_the_same_token_vectors(minilm: Path) -> None:
    light, retriever = open_light(minilm), Retriever(minilm, precision="fp32")
    assert light is not None
    questions = ["Who grinds the flour?", "unbelievably antidisestablishmentarian", "", "[SEP] [MASK] a"]
    for mine, expected in zip(
        light.encode_tokens_of_queries(questions), retriever.encode_tokens_of_queries(questions), strict=True
    ):
        np.testing.assert_allclose(mine, expected, atol=2e-5)


def test_shards_and_batches_write_the_same(
    corpus: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qontext.retrieve.encode.BLOCK", 9)
    whole = encode(corpus, tiny_encoder, tmp_path / "whole")
    encode(corpus, tiny_encoder, tmp_path / "parts", shard="1/2", batch_tokens=64)
    parts = encode(corpus, tiny_encoder, tmp_path / "parts", shard="0/2", batch_tokens=64)
    for mine, expected in zip(*(open_bits(artifact.path).parts for artifact in (parts, whole)), strict=True):
        assert np.array_equal(mine.starts, expected.starts) and np.array_equal(mine.values, expected.values)
    stored = TokenScorer(whole.path, QueryEncoder(str(tiny_encoder), precision="fp32"))
    assert len(stored.encoded.parts) == 5
    found = Run.of(_hits("q0", sorted(rows_of(corpus))))
    by_tokens = dict(zip((hit.passage for hit in found["q0"]), stored.score(QUESTIONS, found)))
    own = {id: reference(tiny_encoder, QUESTIONS["q0"], text) for id, text in rows_of(corpus).items()}
    assert sorted(by_tokens, key=lambda id: (-by_tokens[id], id)) == sorted(
        own, key=lambda id: (-round(own[id], 5), id)
    )


def test_bits_of_unchanged_passages_are_reused(corpus: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    old = encode(corpus, tiny_encoder, tmp_path / "old")
    file = corpus / "corpus.jsonl"
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    rows[5]["text"] = "Another text."
    rows.insert(0, {"_id": "new", "title": "", "text": "A new one."})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    again = encode(corpus, tiny_encoder, tmp_path / "again", reuse=old.path)
    assert (again.summary["encoded_now"], again.summary["reused"]) == (2, len(rows) - 2)
    fresh = encode(corpus, tiny_encoder, tmp_path / "fresh")
    for mine, expected in zip(*(open_bits(artifact.path).parts for artifact in (again, fresh)), strict=True):
        assert np.array_equal(mine.starts, expected.starts) and np.array_equal(mine.values, expected.values)
    vectors: dict[str, Any] = {"encoder": tiny_encoder, "precision": "fp32"}
    alone = api.encode(corpus, **vectors, reuse=fresh.path, out=tmp_path / "one")
    assert alone.summary["reused"] == len(rows), "the vectors are the same without the bits"
    assert encode(corpus, tiny_encoder, tmp_path / "more", reuse=alone.path).summary["reused"] == 0


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("window", [None, 16])
def test_vectors_and_bits_are_those_of_passes_of_their_own(
    corpus: Path, tiny_encoder: Path, tmp_path: Path, pooling: str, window: int | None
) -> None:
    settings: dict[str, Any] = {"pooling": pooling, "window": window}
    both = encode(corpus, tiny_encoder, tmp_path / "both", **settings)
    alone = api.encode(corpus, encoder=tiny_encoder, precision="fp32", **settings, out=tmp_path / "alone")
    stored, expected = (open_stored(artifact.path).parts[0] for artifact in (both, alone))
    values = [part.values if isinstance(part, Packed) else part for part in (stored, expected)]
    np.testing.assert_allclose(*values, atol=1e-6)
    retriever = Retriever(tiny_encoder, precision="fp32")
    passages = load_passages(corpus)
    cut = [windows_of(p.text, window, counter(str(tiny_encoder))) if window else [p.text] for p in passages]
    texts = [[p._replace(text=text).joined(" ") for text in own] for p, own in zip(passages, cut)]
    bits = open_bits(both.path).parts[0]
    assert sum(map(len, texts)) > len(texts) or window is None
    for place, own in enumerate(texts):
        tokens = retriever.encode_each_token(retriever.tokenize(own, "passage"), bits_of)
        np.testing.assert_array_equal(bits[place : place + 1].values, tokens.values)


def test_bits_of_other_passages_are_refused(corpus: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    encoder = QueryEncoder(str(tiny_encoder), precision="fp32")
    bits = TokenScorer(encode(corpus, tiny_encoder, tmp_path / "bits").path, encoder)
    for id in ("a", "p17x", "z"):
        with pytest.raises(QontextError, match=f"lacks the passage '{id}'"):
            bits.score({"q": "a boat"}, Run.of(_hits("q", sorted(["p01", id]))))
