"""Small collections, vectors and encoders for the tests of retrieval."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.retrieve.servers import TOKEN, PostgresServer, running_milvus, running_postgres
from tests.tiny import WORDS, save_bert, write_collection

from qontext.data import records
from qontext.frame import artifacts
from qontext.frame.artifacts import Artifact
from qontext.models.packed import Packed
from qontext.retrieve.stored import ids_name, write_numbers

SIZES = {"max_position_embeddings": 64, "initializer_range": 0.3}


def write_vectors(folder: Path, parts: Sequence[tuple[list[str], Any]], **config: Any) -> Artifact:
    """Write an `encode` artifact with these parts, (ids, vectors) each, of the encoder `nowhere`."""
    return write_encoded(folder, [(ids, {"vectors": vectors}) for ids, vectors in parts], {}, **config)


def write_tokens(folder: Path, parts: Sequence[tuple[list[str], Packed]]) -> Artifact:
    """Write an `encode` artifact of a vector for each token."""
    files = [(ids, {"starts": packed.starts, "vectors": packed.values}) for ids, packed in parts]
    return write_encoded(folder, files, {"representation": "tokens"})


def write_encoded(
    folder: Path, parts: Sequence[tuple[list[str], dict[str, Any]]], summary: dict[str, Any], **config: Any
) -> Artifact:
    """Write an `encode` artifact with the ids and the arrays of each part."""
    inputs = config.pop("inputs", {})
    claim = {
        "verb": "encode",
        "format": 1,
        "config": {"kind": "passage", **config},
        "inputs": {"encoder": {"path": "nowhere", "digest": "d"}, **inputs},
        "key": folder.name,
    }
    work = artifacts.begin(folder, claim)
    for number, (ids, arrays) in enumerate(parts):
        with work.write(f"ids-{number:05d}.parquet") as path:
            records.write_table(path, pa.table({"id": ids}))
        for name, array in arrays.items():
            with work.write(f"{name}-{number:05d}.npy") as path, path.open("wb") as file:
                np.save(file, array, allow_pickle=False)
    write_numbers(work, [ids_name(number) for number in range(len(parts))], str(folder))
    return artifacts.finish(work, claim, summary, 0.0)


@pytest.fixture
def make_vectors(tmp_path: Path) -> Callable[..., Artifact]:
    """`make_vectors("name", [(ids, vectors), …])` writes an `encode` artifact with these parts."""
    return lambda name, parts, **config: write_vectors(tmp_path / name, parts, **config)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server; its token is in the environment."""
    os.environ["MILVUS_TOKEN"] = TOKEN
    with running_milvus(tmp_path_factory.mktemp("milvus")) as uri:
        yield uri
    del os.environ["MILVUS_TOKEN"]


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A folder of 60 passages in 20 documents and 12 queries; query i is about passage 5·i."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 12)) for _ in range(60)]
    passages = [
        {"_id": f"p{i:02d}", "title": f"Chapter {i}", "text": text, "doc_id": f"d{i // 3}"}
        for i, text in enumerate(texts)
    ]
    queries = [{"_id": f"q{i}", "text": f"chapter {5 * i} {texts[5 * i][:30]}"} for i in range(12)]
    splits = {"train": range(8), "test": range(8, 12)}
    qrels = {split: {f"q{i}": f"p{5 * i:02d}" for i in numbers} for split, numbers in splits.items()}
    return write_collection(tmp_path / "beir", passages, queries, qrels)


@pytest.fixture(scope="session")
def tiny_encoder(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformers directory with a random BERT of 2 layers and 16 dimensions, and MiniLM's tokenizer."""
    return save_bert(tmp_path_factory.mktemp("tiny") / "encoder", minilm, **SIZES)


@pytest.fixture(scope="session")
def tiny_rerankers(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two random cross-encoders."""
    folder = tmp_path_factory.mktemp("rerankers")
    return [save_bert(folder / str(seed), minilm, seed=seed, num_labels=1, **SIZES) for seed in (1, 2)]
