"""A vector for each token, as ColBERT: MaxSim on small cases, then from training to search and reranking."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny import save_bert, save_sentence_bert
from torch import Tensor

from qontext import api
from qontext.data.collection import load_collection
from qontext.data.runs import read_run
from qontext.frame.errors import QontextError
from qontext.models.encoder import load_encoder
from qontext.models.folder import read_layout
from qontext.models.packed import Packed
from qontext.models.representations import tokens
from qontext.models.representations.base import Lengths
from qontext.models.representations.tokens import Tokens, TokensOptions, max_similarity
from qontext.models.retriever import Retriever
from qontext.retrieve.index.exact import TokenIndex
from qontext.training.metrics import read

Finetune = Callable[..., Any]
TOKENS: dict[str, Any] = {"representation": "tokens", "token_dimensions": 8, "precision": "fp32"}
TEXTS = ["river stone, bridge", "the bread of the mill: " * 9, "a"]


def by_hand(query: Tensor, passage: Tensor) -> float:
    return sum(max(float(q @ p) for p in passage) for q in query)


def drawn(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.nn.functional.normalize(torch.randn(n, 4, generator=generator), dim=1) for n in lengths]


def filled(texts: list[Tensor], length: int) -> Tensor:
    return torch.stack([torch.nn.functional.pad(text, (0, 0, 0, length - len(text))) for text in texts])


@pytest.mark.parametrize("block", [1, 1 << 24])
def test_max_similarity_is_that_of_the_equation(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "PRODUCTS_PER_BLOCK", block)
    queries, passages = drawn(3, 1, 4), drawn(5, 1, 2, 4)
    passages.append(-queries[1])
    scores = max_similarity(filled(queries, 5), filled(passages, 6))
    expected = [[by_hand(query, passage) for passage in passages] for query in queries]
    torch.testing.assert_close(scores, torch.tensor(expected))
    assert expected[1][4] < 0, "what fills a passage up is not better than its own vectors"


def test_search_finds_what_all_scores_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qontext.retrieve.index.exact.TOKENS_PER_BLOCK", 12)
    queries, passages = drawn(3, 2, 4), drawn(*(1 + n % 5 for n in range(30)))
    scores = np.array([[by_hand(query, passage) for passage in passages] for query in queries])
    ids = np.array([f"p{n:02d}" for n in range(30)], object)
    index = TokenIndex(ids, [(np.arange(17, 30), pack(passages[17:])), (np.arange(17), pack(passages[:17]))])
    for allowed in (None, np.arange(30) % 3 == 0):
        best = np.argsort(-(scores if allowed is None else np.where(allowed, scores, -99)), axis=1)[:, :7]
        numbers, found = index.search(pack(queries), 7, allowed)
        assert numbers.tolist() == best.tolist()
        np.testing.assert_allclose(found, np.take_along_axis(scores, best, 1), rtol=1e-5)


def pack(texts: list[Tensor]) -> Packed:
    starts = np.cumsum([0, *map(len, texts)])
    return Packed(starts, torch.cat(texts).numpy())


@pytest.fixture(scope="module")
def marked(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with BERT's vocabulary, punctuation and unused entries, as it is before its training."""
    folder = tmp_path_factory.mktemp("tokens")
    sizes = {"max_position_embeddings": 64, "initializer_range": 0.3}
    encoder = load_encoder(str(save_bert(folder / "encoder", minilm, **sizes)))
    lengths = Lengths(12, 24)
    options = TokensOptions.model_construct(token_dimensions=8)
    model = Tokens.new(encoder, read_layout(folder / "encoder"), options, lengths)
    (folder / "model").mkdir()
    model.save(encoder, folder / "model", lengths, max_length=24)
    return folder / "model"


def test_queries_are_filled_up_and_punctuation_is_left_out(marked: Path) -> None:
    model = Retriever(marked, device="cpu", precision="fp32", packed=True)
    asked, read_ = model.encode(TEXTS, "query"), model.encode(TEXTS, "passage")
    assert asked.lengths.tolist() == [12, 12, 12]
    # [CLS], marker, words, [SEP]; the comma is left out.
    assert read_.lengths.tolist()[0] == 1 + 1 + 3 + 1 and read_.lengths.tolist()[2] == 4
    assert model.tokenize(["a"], "query")[0][1] != model.tokenize(["a"], "passage")[0][1]
    np.testing.assert_allclose(np.linalg.norm(read_.values, axis=1), 1, rtol=1e-5)
    # A query alone has the vectors that it has among longer ones.
    np.testing.assert_allclose(model.encode(TEXTS[2:], "query").values, asked[2:3].values, atol=1e-5)


def test_sentence_transformers_gives_the_same_vectors_and_scores(marked: Path) -> None:
    library = pytest.importorskip("sentence_transformers", minversion="6.0")
    theirs = library.MultiVectorEncoder(str(marked), device="cpu")
    ours = Retriever(marked, device="cpu", precision="fp32", packed=True)
    vectors = []
    for kind, encode in (("query", theirs.encode_query), ("passage", theirs.encode_document)):
        expected = [np.asarray(text) for text in encode(TEXTS)]
        found = ours.encode(TEXTS, kind)  # type: ignore[arg-type]
        assert [len(text) for text in expected] == found.lengths.tolist()
        np.testing.assert_allclose(found.values, np.concatenate(expected), atol=1e-5)
        vectors.append([torch.from_numpy(text) for text in expected])
    scores = max_similarity(*(filled(texts, 24) for texts in vectors))
    np.testing.assert_allclose(scores, theirs.similarity(*vectors), rtol=1e-4)


@pytest.fixture(scope="module")
def trained(finetune: Finetune, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tokens") / "retriever"
    made = finetune(out, **TOKENS, steps=20, gradient_cache="off", micro_tokens=60)
    course = [line["loss"] for line in read(out / "logs/metrics.jsonl") if "loss" in line]
    assert np.mean(course[-3:]) < np.mean(course[:3]) and made.summary["representation"] == "tokens"
    return out


def test_the_cache_trains_the_same_and_training_goes_on(
    finetune: Finetune, trained: Path, beir: Path, tmp_path: Path
) -> None:
    from tests.finetune.test_run import apart

    settings = {**TOKENS, "steps": 3, "lr": 1e-4, "encoder": str(trained)}
    plain = finetune(tmp_path / "plain", gradient_cache="off", dev=str(beir), keep="last", **settings)
    cached = finetune(tmp_path / "cached", gradient_cache="on", micro_tokens=60, **settings)
    assert apart(plain.path, cached.path) < 1e-5
    assert apart(plain.path / "1_Dense", cached.path / "1_Dense") < 1e-5
    assert apart(plain.path / "1_Dense", trained / "1_Dense") < 0.01, "it started from the trained projection"
    assert plain.summary["dev_before"]["MRR@10"] > 0.3
    with pytest.raises(QontextError, match="token_dimensions = 9, but the encoder's token vectors have 8"):
        finetune(tmp_path / "other", **{**settings, "token_dimensions": 9})


@pytest.fixture(scope="module")
def vectors(trained: Path, beir: Path) -> Path:
    settings: dict[str, Any] = {"precision": "fp32", "storage": "fp16", "device": "cpu"}
    made = api.encode(beir, encoder=trained, **settings, out=trained.parent / "vectors")
    assert made.summary["dimension"] == 8 and made.summary["entries_per_text"] > 3
    return Path(made.path)


def test_search_and_reranking_agree(vectors: Path, trained: Path, beir: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data": beir, "precision": "fp32", "device": "cpu"}
    whole = read_run(api.retrieve(vectors, split="dev", k=60, **settings, out=tmp_path / "run").path)
    bm25 = api.retrieve(bm25=True, data=beir, split="dev", k=20, out=tmp_path / "bm25")
    reranked = read_run(api.rerank(bm25.path, tokens=vectors, **settings, out=tmp_path / "reranked").path)
    model, collection = Retriever(trained, device="cpu", precision="fp32", packed=True), load_collection(beir)
    passages = {p.id: p.content for p in collection.passages()}
    for query, text in collection.queries("dev").items():
        scores = {hit.passage: hit.score for hit in whole[query]}
        assert len(scores) == 60
        candidates = {hit.passage for hit in read_run(bm25.path)[query]}
        assert {hit.passage for hit in reranked[query]} == candidates
        for hit in reranked[query]:
            assert hit.score == pytest.approx(scores[hit.passage], rel=1e-4)
        first = whole[query][0]
        asked, read_ = (
            torch.from_numpy(model.encode([text], "query").values),
            torch.from_numpy(model.encode([passages[first.passage]], "passage").values),
        )
        assert first.score == pytest.approx(by_hand(asked, read_), rel=2e-3)


def test_prompts_beside_the_markers_are_left_with_a_warning(
    finetune: Finetune, minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_sentence_bert(tmp_path / "encoder", minilm, max_position_embeddings=64)
    named = {"prompts": {"query": "ask: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(named))
    settings = {**TOKENS, "encoder": str(folder), "steps": 1}
    made = finetune(tmp_path / "out", **settings)
    assert "are ignored: the representation 'tokens' has prompts of its own" in " ".join(
        capsys.readouterr().err.split()
    )
    assert read_layout(made.path).prompt("query") == "[unused0]"
