"""Queries that resemble those of people in length, form and words."""

from __future__ import annotations

import json
from pathlib import Path

from qontext import api
from qontext.data.collection import Passage, read_queries
from qontext.queries.imitation import Style

PASSAGE = Passage("p", "Ovens", "Bread is baked in ovens of clay.", "d")
CANDIDATES = [
    "ovens clay", "bread", "how is bread baked in an oven of clay?", "reprocessed clay", "what is baked?",
    "bread is baked in ovens of clay by those who live there",
]  # fmt: skip


def test_keywords_are_imitated_by_keywords_and_questions_by_questions() -> None:
    keywords = Style(["oven clay", "bread recipe", "mill stones"], 7).choose(PASSAGE, CANDIDATES, 2)
    assert set(keywords) <= {"ovens clay", "bread", "reprocessed clay"} and keywords[0] == "ovens clay"
    asked = Style(["how is flour made in a mill of stone?", "how is a mill built of stone?"], 7)
    assert asked.choose(PASSAGE, CANDIDATES, 1) == ["how is bread baked in an oven of clay?"]
    assert asked.choose(PASSAGE, CANDIDATES, 1) == Style(
        ["how is flour made in a mill of stone?"] * 2, 7
    ).choose(PASSAGE, CANDIDATES, 1)


def test_words_that_nobody_asks_with_are_avoided_but_for_the_title() -> None:
    style = Style(["clay pots", "clay bricks"], 7)
    assert style.choose(PASSAGE, ["reprocessed silicates", "clay silicates"], 1) == ["clay silicates"]
    assert style.choose(PASSAGE, ["clay silicates", "clay ovens"], 1) == ["clay ovens"]


def test_an_echo_of_the_passage_takes_no_place(tmp_path: Path) -> None:
    rows = [{"_id": "p", "title": "Ovens", "text": PASSAGE.text}]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = {"id": "p", "queries": [PASSAGE.text, "", "Bread", "bread?", "how is it baked?"]}
    (tmp_path / "queries.jsonl").write_text(json.dumps(queries) + "\n")
    (tmp_path / "asked.txt").write_text(PASSAGE.text + "\n")
    made = api.generate(
        tmp_path / "docs.jsonl", generator="file", queries=tmp_path / "queries.jsonl", per_passage=2,
        like=tmp_path / "asked.txt", out=tmp_path / "out",
    )  # fmt: skip
    assert sorted(read_queries(made.path).values()) == ["Bread", "how is it baked?"]


def test_a_log_of_questions_is_read_by_line(tmp_path: Path) -> None:
    (tmp_path / "asked.log").write_text("where is the mill\n\nWhere is  the mill\nbread\n")
    assert read_queries(tmp_path / "asked.log") == {"line-1": "where is the mill", "line-4": "bread"}


def test_generated_queries_become_as_short_as_those_of_the_log(tmp_path: Path) -> None:
    text = "In 1820 the miller of Brack built an oven of red clay. It baked bread for the harbour until a storm broke it."
    rows = [{"_id": f"d{n}", "title": "", "text": f"{text} The number of loaves was {n}."} for n in range(6)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "asked.txt").write_text("red clay oven bread\nharbour storm roof loaves\n")
    passages = api.split(tmp_path / "docs.jsonl", workers=1, out=tmp_path / "passages")
    mean = {}
    for name, like in (("plain", None), ("like", tmp_path / "asked.txt")):
        made = api.generate(passages, generator="keyphrase", per_passage=2, like=like, out=tmp_path / name)
        queries = list(read_queries(made.path).values())
        mean[name] = sum(len(query.split()) for query in queries) / len(queries)
        assert len(queries) == 12 or like is None
    assert abs(mean["like"] - 4) < abs(mean["plain"] - 4)
