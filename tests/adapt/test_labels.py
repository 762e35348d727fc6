"""adapt with labels, or with the scores of a cross-encoder in their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.adapt.calls import adapt, adapt_until

from qontext.finetune.negatives.groups import read_groups
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError


def test_a_cross_encoders_scores_stand_for_labels(
    reports: Path, small_encoder: Path, small_reranker: Path, tmp_path: Path
) -> None:
    out = tmp_path / "made"
    steps = adapt_until("adapted-vectors", reports, out, small_encoder, reranker=small_reranker)
    finetuned = open_artifact(steps / "finetune")
    assert finetuned.config["loss"] == "margin-mse"
    assert finetuned.summary["losses"]["margin_mse"] > 0
    searched = {line.split(" ")[0] for line in (steps / "bm25-train" / "run.trec").open()}
    assert searched == {group.query for group in read_groups(steps / "negatives")}, "no other is searched for"
    held = {line.split("\t")[1] for line in (steps / "holdout/measured/qrels/generated.tsv").open()}
    taught = {passage for group in read_groups(steps / "negatives") for passage in group.positives}
    assert taught and not taught & held, "what is measured with is not learned from"
    assert open_artifact(steps / "adapted-vectors").meta["inputs"]["encoder"]["path"].endswith("finetune")


def test_labels_are_trained_on_and_measured_by_document(
    reports: Path, small_encoder: Path, tmp_path: Path
) -> None:
    labels = tmp_path / "labels.jsonl"
    rows = [
        {"query": f"how was the {part} of number {number} mended", "document": f"report-{number}"}
        for number in range(30)
        for part in ("lamp", "bell", "stair")
    ]
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = adapt(reports, tmp_path / "made", small_encoder, labels=labels)
    assert result["verdict"]["split"] == "test"
    assert set(result["verdict"]["scores"]) == {"test", "generated"}
    assert not any(
        "these results are for generated ones" in sentence for sentence in result["verdict"]["sentences"]
    )
    held = tmp_path / "made" / "steps" / "holdout" / "measured" / "qrels"
    documents = [
        {
            line.split("\t")[1].partition("#")[0]
            for line in (held / f"{split}.tsv").read_text().splitlines()[1:]
        }
        for split in ("train", "dev", "test")
    ]
    assert not documents[0] & documents[2]
    assert not documents[0] & documents[1]
    assert open_artifact(tmp_path / "made" / "steps" / "finetune").summary["steps"] >= 1


def test_few_labels_make_small_batches(reports: Path, small_encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "labels"
    (folder / "qrels").mkdir(parents=True)
    labeled = [(f"q{n}", f"how was the bell of number {n} mended", f"report-{n}") for n in range(30)]
    queries = [json.dumps({"_id": id, "text": text}) + "\n" for id, text, _ in labeled]
    (folder / "queries.jsonl").write_text("".join(queries))
    (folder / "corpus.jsonl").write_text("".join(reports.read_text().splitlines(keepends=True)))
    for split, rows in {"train": labeled[:20], "test": labeled[20:]}.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"{id}\t{report}\t1" for id, _, report in rows)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "made"
    steps = adapt_until("finetune", reports, out, small_encoder, labels=folder, max_labels=9)
    assert open_artifact(steps / "holdout").summary["labeled_queries"]["train"] == 9
    finetuned = open_artifact(steps / "finetune")
    assert finetuned.config["batch_size"] == 4
    assert finetuned.summary["queries"] == 9


def test_labels_of_other_documents_are_refused(reports: Path, small_encoder: Path, tmp_path: Path) -> None:
    rows = [{"query": f"who is {n}", "passage": "elsewhere"} for n in range(3)]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(QontextError, match="none of the labeled ids"):
        adapt(reports, tmp_path / "made", small_encoder, labels=tmp_path / "labels.jsonl")
