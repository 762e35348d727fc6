"""A tiny encoder in the layout of sentence-transformers, and a labeled set."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.retrieve.conftest import SIZES, beir, make_vectors, tiny_encoder
from tests.tiny import WORDS, save_sentence_bert, write_collection

__all__ = ["beir", "make_vectors", "tiny_encoder"]


@pytest.fixture(scope="session")
def encoder(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mean pooling and normalization, with MiniLM's tokenizer."""
    return save_sentence_bert(tmp_path_factory.mktemp("sentence-bert") / "encoder", minilm, **SIZES)


@pytest.fixture(scope="session")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve passages of different lengths, each with a query that repeats its first words."""
    texts = [" ".join(WORDS[n:] + WORDS[:n] * (n % 3)) for n in range(12)]
    passages = [{"_id": f"p{n}", "title": f"Chapter {n}", "text": text} for n, text in enumerate(texts)]
    queries = [{"_id": f"q{n}", "text": text[:20]} for n, text in enumerate(texts)]
    qrels = {"test": {f"q{n}": f"p{n}" for n in range(12)}}
    return write_collection(tmp_path_factory.mktemp("labeled") / "set", passages, queries, qrels)
