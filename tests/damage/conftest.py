"""One of everything that a stage writes, to be damaged; and a tree of it that can be moved."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tiny import WORDS, save_sentence_bert, write_collection

from qontext import api

SEARCH: dict[str, Any] = {"split": "test", "k": 3, "precision": "fp32", "device": "cpu"}
LATE: dict[str, Any] = {
    "passages": "data",
    "encoder": "encoder",
    "representation": "tokens",
    "token_dimensions": 8,
    "query_length": 16,
    "passage_length": 32,
    "steps": 1,
    "batch_size": 2,
    "passages_per_query": 2,
    "device": "cpu",
}
"""One step of fine-tuning to vectors of tokens."""


def write_beir(folder: Path) -> Path:
    """300 passages (so that a compressed index can be learned) and 4 queries."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 12)) + "." for _ in range(300)]
    passages = [{"_id": f"p{i:03}", "title": f"Chapter {i}", "text": text} for i, text in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": texts[i][:40]} for i in range(4)]
    return write_collection(folder, passages, queries, {"test": {f"q{i}": f"p{i:03}" for i in range(4)}})


def save_encoder(folder: Path, minilm: Path) -> Path:
    """A random BERT of 2 layers in sentence-transformers' layout, with MiniLM's tokenizer."""
    return save_sentence_bert(folder, minilm, max_position_embeddings=64)


@pytest.fixture(scope="session")
def tree(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, an encoder, and one artifact of every kind that is read again, made by paths relative to the tree."""
    root = tmp_path_factory.mktemp("tree") / "work"
    write_beir(root / "data")
    save_encoder(root / "encoder", minilm)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        api.split("data", keep=True, workers=1, out="passages")
        api.tokens("passages", tokenizer="encoder", workers=1, out="tokens")
        api.encode("data", encoder="encoder", precision="fp32", device="cpu", out="vectors")
        api.index("passages", backend="bm25", out="bm25")
        api.index("vectors", backend="faiss-hnsw", out="hnsw")
        api.retrieve("bm25", data="data", split="test", k=5, out="run")
        api.retrieve("vectors", data="data", out="run2", **SEARCH)
        api.mine("run", "data", data="data", split="test", per_query=2, out="groups")
        api.finetune("groups", out="late", **LATE)
        api.encode("data", encoder="late", max_length=32, precision="fp32", device="cpu", out="multi")
        api.index("multi", backend="residual", centroids=16, out="residual")
        api.evaluate("run", "data", split="test", out="scores")
        api.fuse(("run", "run2"), tune="data/qrels/test.tsv", method="zscore", out="fused")
    return root


@pytest.fixture
def copy(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of one's own, which is the working directory."""
    shutil.copytree(tree, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"
