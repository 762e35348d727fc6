"""Held-out questions of a language model: the same however often the stage is interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tiny import save_llama

from qontext import api
from qontext.data.collection import Passage, load_collection
from qontext.evaluation import question_model
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError

TEXTS = [f"Room {n} of the lighthouse has a lamp, a stair and a bell, and {n} windows." for n in range(12)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_llama(tmp_path_factory.mktemp("llama"), TEXTS)


@pytest.fixture
def passages(monkeypatch: pytest.MonkeyPatch) -> list[Passage]:
    monkeypatch.setattr(question_model, "PART", 5)
    return [Passage(f"p{n}", "", text, f"d{n}") for n, text in enumerate(TEXTS)]


def test_an_interrupted_stage_writes_only_what_is_missing(
    model: str, passages: list[Passage], tmp_path: Path
) -> None:
    whole, again = (Workdir(tmp_path / name) for name in ("whole", "again"))
    expected = question_model.write_questions(model, passages, 7, whole)
    assert len(expected) > 6 and list(expected) == sorted(expected, key=lambda id: int(id[1:]))
    question_model.write_questions(model, passages, 7, again)
    again.remove("questions/00005.json")
    again.write_json("questions/00010.json", {"p11": "kept"})
    resumed = question_model.write_questions(model, passages, 7, again)
    assert resumed == {id: q for id, q in expected.items() if id not in ("p10", "p11")} | {"p11": "kept"}
    other = question_model.write_questions(model, passages, 8, Workdir(tmp_path / "other"))
    assert other != expected


def test_each_held_out_passage_has_a_question_of_the_model(model: str, tmp_path: Path) -> None:
    source = tmp_path / "docs.jsonl"
    source.write_text(
        "".join(json.dumps({"_id": f"d{n}", "text": TEXTS[n % 12]}) + "\n" for n in range(60)), "utf-8"
    )
    split = api.split(source, keep=True, workers=1, out=tmp_path / "passages")
    queries = api.generate(split, generator="span", per_passage=2, out=tmp_path / "queries")
    with pytest.raises(QontextError, match="--question-model needs generated queries"):
        api.holdout(split, labels=source, question_model=model, out=tmp_path / "none")
    plain = api.holdout(split, queries, share=0.4, out=tmp_path / "plain")
    asked = api.holdout(split, queries, share=0.4, question_model=model, out=tmp_path / "asked")
    drawn, written = (load_collection(h.path / "measured") for h in (plain, asked))
    assert len(drawn.queries("generated")) > 3 and len(written.queries("generated")) > 3
    assert not set(written.queries("generated").values()) & set(drawn.queries("generated").values())
    judged = drawn.qrels("generated")
    assert all(judged.get(query, passage) == passage for query, passage in written.qrels("generated").items())
