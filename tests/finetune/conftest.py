"""A tiny labeled set, groups with hard negatives, and a random encoder of 2 layers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.tiny import WORDS, write_collection

from qontext.data import records
from qontext.finetune.negatives.groups import GROUPS
from qontext.models.encoder import load_encoder

torch.set_num_threads(1)
Row = tuple[str, str, Sequence[str], Sequence[str]]


def write_groups(path: Path, rows: Sequence[Row]) -> Path:
    named = [dict(zip(GROUPS.names, row)) for row in rows]
    records.write_table(path, pa.Table.from_pylist(named, schema=GROUPS))
    return path


@pytest.fixture(scope="session")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 passages and 20 queries; query i is about passage 3·i. 14 are for training, 6 for dev."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 4 + i % 11)) for i in range(60)]
    passages = [{"_id": f"p{i}", "title": f"Chapter {i}", "text": text} for i, text in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": f"chapter {3 * i} {texts[3 * i][:20]}"} for i in range(20)]
    splits = {"train": range(14), "dev": range(14, 20)}
    qrels = {split: {f"q{i}": f"p{3 * i}" for i in numbers} for split, numbers in splits.items()}
    return write_collection(tmp_path_factory.mktemp("set") / "beir", passages, queries, qrels)


@pytest.fixture(scope="session")
def groups(beir: Path) -> Path:
    """The training queries with four hard negatives each, but for one that has two."""
    rows: list[Row] = []
    for i in range(14):
        text = json.loads((beir / "queries.jsonl").read_text().splitlines()[i])["text"]
        negatives = [f"p{(3 * i + step) % 60}" for step in (1, 2, 4, 5)]
        rows.append((f"q{i}", text, [f"p{3 * i}"], negatives[:2] if i == 5 else negatives))
    return write_groups(beir.parent / "groups.parquet", rows)


@pytest.fixture(scope="session")
def start(beir: Path) -> Path:
    """A random BERT of 2 layers without dropout and with a tokenizer of its own, as a folder."""
    from qontext import api

    folder = beir.parent
    api.split(beir / "corpus.jsonl", out=folder / "passages", workers=1, max_tokens=40)
    api.train_tokenizer(folder / "passages", out=folder / "tokenizer", vocabulary=200)
    encoder = load_encoder("tiny", tokenizer=str(folder / "tokenizer"), dropout=0.0, seed=1)
    (folder / "encoder").mkdir()
    encoder.save(folder / "encoder", max_length=40, mlm_head=False)
    return folder / "encoder"


@pytest.fixture(scope="session")
def scores(beir: Path, groups: Path) -> Path:
    """A teacher's scores of all passages of the groups."""
    from qontext.finetune.negatives.groups import read_groups

    lines = []
    for number, group in enumerate(read_groups(groups)):
        for rank, passage in enumerate([*group.positives, *group.negatives]):
            lines.append(f"{group.query} Q0 {passage} {rank + 1} {3.0 - rank - 0.1 * number} teacher")
    path = beir.parent / "teacher.trec"
    path.write_text("\n".join(lines) + "\n")
    return path


SMALL: dict[str, Any] = {
    "batch_size": 4,
    "passages_per_query": 4,
    "query_length": 12,
    "passage_length": 24,
    "lr": 1e-3,
    "log_every": 1,
    "device": "cpu",
    "steps": 6,
}


@pytest.fixture(scope="session")
def finetune(beir: Path, groups: Path, start: Path) -> Callable[..., Any]:
    """`finetune(out, **settings)` runs the verb on the tiny groups."""
    from qontext import api

    def call(out: Path, source: Path | None = groups, **settings: Any) -> Any:
        base = {**SMALL, "passages": str(beir), "encoder": str(start)}
        return api.finetune(source, out=out, **{**base, **settings})

    return call
