"""A labeled set from docstrings: summaries leave their passages, and everything else stays."""

from __future__ import annotations

from pathlib import Path

from qontext import api
from qontext.data.collection import load_collection


def test_summaries_become_queries_and_leave_their_passages(tmp_path: Path) -> None:
    docset = api.docset("pydocs:json,asyncio,logging", queries=30, out=tmp_path / "a")
    collection = load_collection(docset.path)
    passages = {p.id: p for p in collection.passages()}
    plain = api.split("pydocs:json,asyncio,logging", keep=True, out=tmp_path / "plain", workers=1)
    assert len(passages) == docset.summary["passages"] == plain.summary["passages"]
    judged_queries = 0
    for split in ("dev", "test"):
        questions = collection.queries(split)
        assert len(questions) == docset.summary[f"{split}_queries"] > 0
        for query, relevant in collection.qrels(split).items():
            (passage,) = relevant
            assert not " ".join(passages[passage].text.split()).startswith(questions[query])
            assert 4 <= len(questions[query].split()) <= 25
            judged_queries += 1
    assert 15 <= judged_queries <= 45
    again = api.docset("pydocs:json,asyncio,logging", queries=30, out=tmp_path / "b")
    assert again.digest == docset.digest
    assert (
        api.docset("pydocs:json,asyncio,logging", queries=30, seed=1, out=tmp_path / "c").digest
        != docset.digest
    )
    few = api.docset("pydocs:json,asyncio,logging", passages=40, queries=5, out=tmp_path / "d")
    assert 40 <= few.summary["passages"] < docset.summary["passages"]
