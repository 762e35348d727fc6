"""A tiny corpus with its token stores, and tiny encoders, for the tests of pre-training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.pretrain.reference import Both
from tests.pretrain.runs import command
from tests.tiny import Running, Server

from qontext import api
from qontext.contexts import Context, Sources, match_queries
from qontext.corpus.store import open_store
from qontext.data import records
from qontext.models.encoder import Encoder, load_encoder
from qontext.pretrain.batches import BatchPlan
from qontext.pretrain.config import PretrainConfig
from qontext.pretrain.masking import Vocabulary

torch.set_num_threads(1)

WORDS = """
    retrieval finds passages that answer questions about rivers mountains cities machines animals
    weather music paintings bridges harbours engines languages gardens libraries compilers networks
    planets minerals unbelievably interconnectedness counterrevolutionaries the a of and in with under
    over between
""".split()


def sentence(number: int) -> str:
    """A made-up sentence; every number gives another one."""
    picked = [WORDS[(number * 7 + k * (number % 5 + 3)) % len(WORDS)] for k in range(5 + number % 9)]
    return f"{' '.join(picked).capitalize()} number {number}."


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with documents of 1 to 9 passages, a tokenizer trained on them, queries and token stores."""
    folder = tmp_path_factory.mktemp("corpus")
    lines, number = [], 0
    for document in range(24):
        size = 1 if document % 8 == 7 else 4 + document % 6 * 5
        text = " ".join(sentence(number + k) for k in range(size))
        number += size
        lines.append(f'{{"_id": "d{document}", "title": "Title {document}", "text": "{text}"}}')
    (folder / "docs.jsonl").write_text("\n".join(lines))
    quiet = {"workers": 1}
    passages = api.split(folder / "docs.jsonl", out=folder / "passages", max_tokens=40, **quiet)
    api.train_tokenizer(passages, out=folder / "tokenizer", vocabulary=300)
    rows = []
    for batch in records.read_table(passages.path, records.PASSAGES):
        for row in batch.to_pylist():
            words = row["text"].split()
            rows += [
                {"passage": row["id"], "query": " ".join(words[k : k + 4]), "number": k}
                for k in range(1 + len(rows) % 3)
            ]
    queries = folder / "queries.parquet"
    records.write_table(queries, records.table_of(rows, records.QUERIES))
    for source, name in ((passages, "tokens"), (queries, "query-tokens")):
        api.tokens(source, tokenizer=folder / "tokenizer", title="leave", out=folder / name, **quiet)
    return folder


@pytest.fixture(scope="session")
def sources(corpus: Path) -> Sources:
    passages, queries = open_store(corpus / "tokens"), open_store(corpus / "query-tokens")
    return Sources(passages, 38, queries, match_queries(passages, queries))


@pytest.fixture
def encoder(corpus: Path) -> Encoder:
    """A new 2-layer BERT without dropout."""
    return load_encoder("tiny", tokenizer=str(corpus / "tokenizer"), dropout=0.0, seed=1)


@pytest.fixture(scope="session")
def generator(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another encoder with the same vocabulary, in a folder."""
    folder = tmp_path_factory.mktemp("generator")
    load_encoder("tiny", tokenizer=str(corpus / "tokenizer"), dropout=0.0, seed=9).save(folder, max_length=40)
    return str(folder)


@pytest.fixture
def configure(corpus: Path) -> Callable[..., PretrainConfig]:
    def make(**settings: Any) -> PretrainConfig:
        base = {"passages": str(corpus / "passages"), "encoder": "tiny", "batch_size": 6, "max_tokens": 40}
        return PretrainConfig.make({**base, **settings}, where="pretrain")

    return make


@pytest.fixture
def plan_of(sources: Sources, encoder: Encoder) -> Callable[..., BatchPlan]:
    """The batch plan of a configuration over the tiny corpus."""

    def make(config: PretrainConfig, **changes: Any) -> BatchPlan:
        import numpy as np

        layout = config.layout()
        context = Context(config.context_name(), sources) if layout.needs_context else None
        anchors = np.flatnonzero(sources.passages.lengths > 0)
        settings = {
            "sources": sources,
            "layout": layout,
            "context": context,
            "words": Vocabulary.of(encoder.tokenizer),
            "anchors": anchors,
            "documents": None,
            "batch_size": config.batch_size,
            "micro_tokens": 100_000,
            "seed": config.seed,
        }
        return BatchPlan(**{**settings, **changes})

    return make


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows)


@pytest.fixture
def start(warm: Server, corpus: Path, tmp_path: Path) -> Callable[..., Running]:
    """`start(out, *more)` starts the command in a process of its own, or in `ranks` processes."""

    def launch(out: Path, *more: str, ranks: int = 1, source: Path = corpus, **environment: str) -> Running:
        order = {"argv": command(source, out, *more), "cwd": str(tmp_path)}
        return warm.launch(order, tmp_path / f"{out.name}.said", ranks, **environment)

    return launch


@pytest.fixture(params=[100_000, 150], ids=["one rectangle", "many rectangles"])
def build(
    request: pytest.FixtureRequest, encoder: Any, configure: Callable[..., Any], plan_of: Callable[..., Any]
) -> Callable[..., Both]:
    """The objective of some settings, and a batch for it: all rows padded together, or in small micro-batches."""

    def make(**settings: Any) -> Both:
        config = configure(**settings)
        plan = plan_of(config, micro_tokens=request.param)
        batch = plan(1)
        lengths = {int(n) for micro in batch.micro for n in micro.encoder.mask.sum(1)}
        assert len(lengths) > 1, "texts of mixed lengths"
        assert (len(batch.micro) > 1) == (request.param == 150)
        return config.objective(encoder).eval(), batch, batch.micro

    return make
