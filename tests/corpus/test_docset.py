"""A labelled set from docstrings: summaries leave their passages, and everything else stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from qontext import api
from qontext.data.collection import load_collection
from qontext.frame.errors import QontextError


def test_summaries_become_queries_and_leave_their_passages(tmp_path: Path) -> None:
    made = api.docset("pydocs:json,asyncio,logging", queries=30, out=tmp_path / "a")
    collection = load_collection(made.path)
    passages = {p.id: p for p in collection.passages()}
    plain = api.split("pydocs:json,asyncio,logging", keep=True, out=tmp_path / "plain", workers=1)
    assert len(passages) == made.summary["passages"] == plain.summary["passages"]
    asked = 0
    for split in ("dev", "test"):
        questions = collection.queries(split)
        assert len(questions) == made.summary[f"{split}_queries"] > 0
        for query, relevant in collection.qrels(split).items():
            (passage,) = relevant
            assert not " ".join(passages[passage].text.split()).startswith(questions[query])
            assert 4 <= len(questions[query].split()) <= 25
            asked += 1
    assert 15 <= asked <= 45
    again = api.docset("pydocs:json,asyncio,logging", queries=30, out=tmp_path / "b")
    assert again.digest == made.digest
    assert (
        api.docset("pydocs:json,asyncio,logging", queries=30, seed=1, out=tmp_path / "c").digest
        != made.digest
    )
    few = api.docset("pydocs:json,asyncio,logging", passages=40, queries=5, out=tmp_path / "d")
    assert 40 <= few.summary["passages"] < made.summary["passages"]


def test_other_sources_have_no_summaries(tmp_path: Path) -> None:
    with pytest.raises(QontextError, match=r"built from docstrings.*pydocs:"):
        api.docset(str(tmp_path), out=tmp_path / "out")
