"""What searches the vectors of an adapted directory: chosen, measured, changed, and updated with the documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapt.calls import adapt
from tests.retrieve.servers import running_postgres

from qontext import Retriever
from qontext.adapt import vector_index
from qontext.data.collection import read_passages
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.retrieve.directory import index_of
from qontext.retrieve.searcher import Searcher
from qontext.retrieve.system import System

QUESTION = "Which year was the bell of Corrie 12 repaired?"


def dense(out: Path) -> Searcher:
    """Searches by vectors alone, whatever measured best."""
    searcher = Searcher(out)
    searcher.system = System("start")
    return searcher


def vectors_of(out: Path) -> Any:
    return open_artifact(index_of(out) / "vectors").summary


def test_an_index_is_added_measured_updated_and_removed_without_training(
    adapted: Any, small_encoder: Path, write_documents: Callable[..., Path], report: Callable[..., Any]
) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed")
    out = adapted.out
    trained = open_artifact(out / "steps" / "pretrain").meta
    assert vectors_of(out)["representation"] == "windows" and vectors_of(out)["entries_per_text"] > 1.5
    result = adapt(adapted.documents, out, small_encoder, index="faiss-hnsw", neighbors=8)
    assert open_artifact(out / "steps" / "pretrain").meta == trained
    assert open_artifact(index_of(out) / "dense").config["neighbors"] == 8
    assert "representation" not in vectors_of(out), "an index has one vector of each passage"
    retriever = Retriever(small_encoder, max_length=Searcher(out).collection.read_tokens)
    passages = list(read_passages(index_of(out) / "passages"))
    scores = retriever.encode_passages(passages) @ retriever.encode_queries([QUESTION])[0]
    exact = [passages[n].id for n in (-scores).argsort(kind="stable")[:10]]
    measured = result["searching"]
    assert measured["backend"] == "faiss-hnsw" and measured["recall"]["10"] > 0.95 and measured["seconds"] > 0
    (sentence,) = measured["sentences"]
    assert "searched by faiss-hnsw" in sentence and sentence in (out / "report" / "report.html").read_text()
    assert json.loads((out / "adapted.json").read_text())["searching"] == measured
    assert {answer.id for answer in dense(out).search(QUESTION, k=10)} >= {*exact[:5]}
    # The same command without the option keeps it; documents that changed are in it.
    documents = [report(number) for number in range(1, 30)]
    updated = adapt(write_documents([*documents, report(40)]), out, small_encoder)
    assert updated["updated"] and updated["searching"]["backend"] == "faiss-hnsw"
    assert open_artifact(index_of(out) / "dense").config["neighbors"] == 8
    names = {answer.document for answer in dense(out).search("lighthouse", k=500)}
    assert "report-40" in names and "report-0" not in names
    # Nothing but the index changes, though the documents are no longer those of the training.
    again = adapt(write_documents([*documents, report(40)]), out, small_encoder, index="exact")
    assert again["searching"]["backend"] == "exact" and not (index_of(out) / "dense").exists()
    assert vectors_of(out)["representation"] == "windows"
    assert open_artifact(out / "steps" / "pretrain").meta == trained


def test_bits_of_tokens_follow_the_documents(
    adapted: Any, small_encoder: Path, write_documents: Callable[..., Path], report: Callable[..., Any]
) -> None:
    out = adapted.out

    def recommend(system: str) -> None:
        about = json.loads((out / "adapted.json").read_text())
        name = system if about["encoder"] == "adapted" else f"{system}-start"
        (out / "adapted.json").write_text(json.dumps({**about, "system": name}))

    recommend("tokens")
    documents = [report(number) for number in range(1, 30)]
    adapt(write_documents([*documents, report(40)]), out, small_encoder)
    assert vectors_of(out)["token_bytes"]
    adapt(write_documents([*documents, report(40), report(41)]), out, small_encoder)
    now = vectors_of(out)
    assert now["token_bytes"] and 0 < now["encoded_now"] < now["reused"]
    answers = Searcher(out).search(report(41)["text"], k=3)
    assert "report-41" in {answer.document for answer in answers}
    recommend("hybrid")
    adapt(write_documents(documents), out, small_encoder)
    assert "token_bytes" not in vectors_of(out), "bits that nothing reads are removed"


def test_a_table_follows_the_documents(
    adapted: Any, small_encoder: Path, write_documents: Callable[..., Path], report: Callable[..., Any]
) -> None:
    """The rows of PostgreSQL are those of the passages, before and after an update; the password is nowhere."""
    with running_postgres() as server:
        import psycopg

        def ids() -> list[str]:
            with psycopg.connect(server.uri) as client:
                return sorted(row[0] for row in client.execute("SELECT id FROM reports"))

        def passages() -> list[str]:
            return sorted(open_ids(adapted.out))

        chosen = {"index": "postgres", "uri": server.address("guarded:pa%3As%2Fs%40w"), "table": "reports"}
        result = adapt(adapted.documents, adapted.out, small_encoder, **chosen, kind="exact")
        assert result["searching"]["recall"] == {"10": 1.0, "100": 1.0} and ids() == passages()
        documents = [report(number) for number in range(1, 30)]
        changed = write_documents([*documents, report(40)])
        updated = adapt(changed, adapted.out, small_encoder, **chosen, kind="exact")
        assert updated["updated"] and ids() == passages() and any("report-40" in id for id in ids())
        written = [
            path for path in adapted.out.rglob("*") if path.suffix in (".json", ".toml", ".md", ".html")
        ]
        assert written and not any(
            "s/s@w" in path.read_text() or "s%2Fs" in path.read_text() for path in written
        )


def open_ids(out: Path) -> list[str]:
    from qontext.data.collection import read_passages

    return [passage.id for passage in read_passages(index_of(out) / "passages")]


def test_an_index_is_recommended_where_exact_search_is_slow() -> None:
    about = {"backend": "exact", "vectors": 2_000_000, "questions": 100, "exact_seconds": 0.4}
    (sentence,) = vector_index._sentences(about)
    assert "2,000,000 vectors takes 400.0 ms for a question: for an index, add --index" in sentence
    assert vector_index._sentences({**about, "exact_seconds": 0.01}) == []


def test_settings_that_adapt_makes_itself_are_refused(
    reports: Path, small_encoder: Path, tmp_path: Path
) -> None:
    with pytest.raises(QontextError, match="adapt: replace is set by adapt itself"):
        adapt(reports, tmp_path / "out", small_encoder, index="milvus", replace="index")
    with pytest.raises(QontextError, match="unknown setting of adapt 'neighbors'"):
        adapt(reports, tmp_path / "out", small_encoder, neighbors=3)
