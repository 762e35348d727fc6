"""Fine-tuning without labels: documents → generated queries → mined negatives → retriever."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qontext import api
from qontext.data import records
from qontext.data.runs import Run
from qontext.finetune.listwise import load_classifier
from qontext.finetune.negatives.groups import read_groups

SMALL = ("finetune.batch_size=8", "finetune.steps=3", "finetune.passage_length=40", "finetune.lr=1e-3")


@pytest.fixture
def inputs(beir: Path, start: Path) -> tuple[str, ...]:
    return (f"inputs.documents={beir / 'corpus.jsonl'}", f"inputs.encoder={start}", *SMALL)


def test_documents_alone_make_a_retriever(inputs: tuple[str, ...], tmp_path: Path) -> None:
    api.run("synthetic", out=str(tmp_path), set=(*inputs, "split.max_tokens=40"))
    generated = {
        f"{row['passage']}:{row['number']}": row
        for batch in records.read_table(tmp_path / "generate", records.QUERIES)
        for row in batch.to_pylist()
    }
    groups = list(read_groups(tmp_path / "mine"))
    assert {group.query for group in groups} == generated.keys()
    for group in groups:
        assert group.positives == [generated[group.query]["passage"]], "its own passage answers it"
        assert group.text == generated[group.query]["query"]
        assert group.positives[0] not in group.negatives
    assert sum(len(group.negatives) for group in groups) > len(groups)
    assert (tmp_path / "encode" / "meta.json").exists()


def test_a_cross_encoder_gives_the_pseudo_labels(
    inputs: tuple[str, ...], start: Path, tmp_path: Path
) -> None:
    model, tokenizer, _ = load_classifier(str(start), 1, 0.0)
    for part in (model, tokenizer):
        part.save_pretrained(str(tmp_path / "reranker"))
    more = (
        *inputs,
        "split.max_tokens=40",
        f"inputs.reranker={tmp_path / 'reranker'}",
        "teacher.max_length=40",
    )
    api.run("synthetic-distilled", out=str(tmp_path / "out"), set=more)
    assert "margin-mse" in (tmp_path / "out/finetune/README.md").read_text()


def test_the_system_that_is_there_gives_the_pseudo_labels(inputs: tuple[str, ...], tmp_path: Path) -> None:
    more = ("split.max_tokens=40", "mine.depth=10")
    api.run("self-distilled", out=str(tmp_path), set=(*inputs, *more), until="finetune")
    first, tokens, teacher = (Run.read(tmp_path / name) for name in ("hybrid", "by-tokens", "teacher"))
    for group in list(read_groups(tmp_path / "mine"))[:5]:
        expected: dict[str, float] = {}
        for run in (first, tokens):
            scores = {hit.passage: hit.score for hit in run[group.query]}
            least, std = min(scores.values()), np.std([*scores.values()])
            for id, score in scores.items():
                expected[id] = expected.get(id, 0.0) + 0.5 * (score - least) / std
        taught = {hit.passage: hit.score for hit in teacher[group.query]}
        assert taught == pytest.approx(expected, rel=1e-4)
        assert {*group.positives, *group.negatives} == {hit.passage for hit in tokens[group.query]}
    losses = (tmp_path / "finetune/logs/metrics.jsonl").read_text()
    assert '"kl"' in losses
