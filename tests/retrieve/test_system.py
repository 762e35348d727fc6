"""The value that says what a search combines, and its recorded names."""

from __future__ import annotations

from typing import get_args

from qontext.retrieve.system import SYSTEMS, System, SystemName, label_of


def test_recorded_names_stay_valid() -> None:
    """They stand in adapted.json, in the names of steps and in reports."""
    last = ["reranked", "tokens-reranked"]
    names = ["bm25", "start", "hybrid-start", "tokens-start", *(f"{name}-start" for name in last)]
    names += ["adapted", "hybrid", "tokens", *last]
    assert [system.name for system in SYSTEMS] == names == list(get_args(SystemName))
    assert [System.parse(name) for name in names] == list(SYSTEMS)
    assert [system.cost for system in SYSTEMS] == [0, 1, 1, 2, 3, 3, 1, 1, 2, 3, 3]
    assert label_of("tokens-start") == "BM25 + original encoder + tokens"
    assert label_of("tokens-reranked") == "BM25 + adapted encoder + tokens + cross-encoder"
    assert label_of("mine") == "mine"


def test_related_systems() -> None:
    tokens = System.parse("tokens-start")
    assert tokens.first_stage.name == "hybrid-start"
    assert tokens.with_encoder("adapted").name == "tokens"
    last = System.parse("tokens-reranked-start")
    assert last.first_stage == tokens and System.parse("reranked").first_stage.name == "hybrid"
