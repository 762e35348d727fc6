"""The table of benchmarks: real files recognized, counts, formats, the sentence when offline."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from qontext.data.collection import read_queries
from qontext.evaluation import benchmarks
from qontext.evaluation.benchmarks import BENCHMARKS, load_judgments
from qontext.frame.errors import QontextError

REAL = {
    "qrels.dl19-passage.txt.gz": "trec-dl-2019",
    "qrels.dl20-passage.txt.gz": "trec-dl-2020",
    "qrels.msmarco-passage.dev-subset.txt.gz": "msmarco-passage/dev",
    "qrels.msmarco-doc.dev.txt.gz": "msmarco-document/dev",
    "qrels.beir-v1.0.0-nfcorpus.test.txt.gz": "beir/nfcorpus",
    "qrels.beir-v1.0.0-scifact.test.txt.gz": "beir/scifact",
    "qrels.beir-v1.0.0-fiqa.test.txt.gz": "beir/fiqa",
    "qrels.beir-v1.0.0-nq.test.txt.gz": "beir/nq",
    "qrels.beir-v1.0.0-arguana.test.txt.gz": "beir/arguana",
}


@pytest.mark.parametrize(("file", "name"), REAL.items())
def test_the_real_judgments_are_recognized(shared_data, file: str, name: str) -> None:  # type: ignore[no-untyped-def]
    judged = load_judgments(str(shared_data("msmarco_trecdl") / file))
    assert judged.benchmark is BENCHMARKS[name]
    assert len(judged.qrels) == judged.benchmark.queries
    assert sum(map(len, judged.qrels.values())) == judged.benchmark.judgments


def test_one_changed_grade_is_another_set(shared_data, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    packed = (shared_data("msmarco_trecdl") / "qrels.beir-v1.0.0-scifact.test.txt.gz").read_bytes()
    text = gzip.decompress(packed).decode()
    (tmp_path / "q.txt").write_text(text.replace("1 0 31715818 1", "1 0 31715818 2"))
    assert load_judgments(str(tmp_path / "q.txt")).benchmark is None


@pytest.mark.parametrize(
    ("file", "count"),
    [
        ("topics.dl19-passage.txt.gz", 43),
        ("topics.dl20.txt.gz", 200),
        ("topics.msmarco-passage.dev-subset.txt.gz", 6980),
        ("topics.msmarco-doc.dev.txt.gz", 5193),
        ("topics.beir-v1.0.0-trec-covid.test.tsv.gz", 50),
    ],
)
def test_the_real_topics_are_read(shared_data, file: str, count: int) -> None:  # type: ignore[no-untyped-def]
    assert len(read_queries(shared_data("msmarco_trecdl") / file)) == count


def test_a_folder_in_beir_layout(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "p", "title": "", "text": "x"}) + "\n")
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "x"}) + "\n")
    (tmp_path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp\t1\n")
    assert load_judgments(str(tmp_path), split="dev").qrels == {"q": {"p": 1}}
    with pytest.raises(QontextError, match="unknown split"):
        load_judgments(str(tmp_path), split="test")


def test_every_published_benchmark_is_in_the_table() -> None:
    named = {benchmark for row in benchmarks.ROWS for benchmark in row.figures}
    assert named <= set(BENCHMARKS)
    assert len(BENCHMARKS["beir/cqadupstack"].parts) == 12
    assert set(BENCHMARKS["beir/cqadupstack"].parts) <= set(BENCHMARKS)


def test_published_averages_follow_from_the_sets() -> None:
    printed = {"coCondenser": 44.1, "coCondenser + query-as-context": 45.6}
    printed |= {"CoT-MAE": 41.7, "CoT-MAE + query-as-context": 45.6}
    rows = {row.system: row for row in benchmarks.rows_for("beir/scifact")}
    for system, average in printed.items():
        figures = [measures["nDCG@10"] for measures in rows[system].figures.values()]
        assert sum(figures) / 14 == pytest.approx(average, abs=0.06), system


def test_offline_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IR_DATASETS_DL_TRIES", "1")
    for proxy in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")  # refuses at once, wherever the tests run
    with pytest.raises(QontextError, match="could not be downloaded"):
        load_judgments("beir/scifact")


def test_names_that_are_not_judgments(tmp_path: Path) -> None:
    with pytest.raises(QontextError, match="Did you mean 'trec-dl-2019'"):
        load_judgments("trec-dl-19")
    with pytest.raises(QontextError, match="answer strings"):
        load_judgments("nq")
    with pytest.raises(QontextError, match="mean of 12 sets"):
        load_judgments("beir/cqadupstack")
    with pytest.raises(QontextError, match="no such judgments file"):
        load_judgments(str(tmp_path / "absent.tsv"))


def test_a_remote_set_is_read_and_written_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ir_datasets = pytest.importorskip("ir_datasets")
    (tmp_path / "docs.tsv").write_text("d1\tA cell divides.\nd2\tA star shines.\n")
    (tmp_path / "queries.tsv").write_text("7\tdo cells divide\n")
    (tmp_path / "qrels.txt").write_text("7 0 d1 1\n7 0 d2 0\n")
    local = ir_datasets.create_dataset(
        docs_tsv=tmp_path / "docs.tsv",
        queries_tsv=tmp_path / "queries.tsv",
        qrels_trec=tmp_path / "qrels.txt",
    )
    names = []
    monkeypatch.setattr(ir_datasets, "load", lambda name: names.append(name) or local)
    judged = load_judgments("beir/scifact")
    assert judged.qrels == {"7": {"d1": 1, "d2": 0}}
    assert judged.benchmark is BENCHMARKS["beir/scifact"]
    assert names == ["beir/scifact/test"]
