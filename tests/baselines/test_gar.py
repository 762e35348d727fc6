"""GAR: what a question's model learns to write, and questions that BM25 reads with what it wrote."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import write_collection

from qontext import api
from qontext.baselines.gar import read_questions
from qontext.data import records
from qontext.data.collection import read_queries
from qontext.data.passage import Passage
from qontext.data.runs import read_run
from qontext.frame.errors import QontextError
from qontext.queries.generators import clean

MILLS = [
    {"title": "Mill", "text": "It stands by a river. It ran in 1830.  The miller\nkept 18 cats.", "passage_id": "1"},
    {"title": "Miller", "text": "Millers of D.C. are 18 in all.", "passage_id": "2"},
    {"title": "Mill", "text": "No cats.", "passage_id": "3"},
]  # fmt: skip


@pytest.fixture
def dpr_s(tmp_path: Path) -> Path:
    """DPR's training file: 100 questions, of which number 7 has no passage."""
    rows: list[dict[str, Any]] = [
        {"question": f"who {number}", "answers": ["18", "eighteen", "18"], "positive_ctxs": MILLS}
        for number in range(100)
    ]
    rows[7]["positive_ctxs"] = []
    (tmp_path / "biencoder-nq-train.json").write_text(json.dumps(rows))
    return tmp_path / "biencoder-nq-train.json"


def targets(source: Path, target: str) -> list[str]:
    pairs, _ = read_questions([str(source)], ("train", "dev"), target)
    return [pair.query for pair in pairs]


def test_the_three_targets(dpr_s: Path) -> None:
    assert targets(dpr_s, "answers")[0] == "18, eighteen"
    assert targets(dpr_s, "titles")[0] == "Mill, Miller"
    assert targets(dpr_s, "sentences")[0] == "The miller kept 18 cats.", "18 is no word of 1830"
    rows = json.loads(dpr_s.read_text())
    rows[0]["answers"] = ["D.C."]
    dpr_s.write_text(json.dumps(rows))
    assert targets(dpr_s, "sentences")[0] == "Millers of D.C. are 18 in all."


def test_every_50th_question_is_for_dev(dpr_s: Path) -> None:
    pairs = read_questions([str(dpr_s)], ("train", "dev"), "answers")
    asked, held = ([pair.text for pair in some] for some in pairs)
    assert len(asked) == 98 and not {*asked} & {*held} and "who 7" not in asked
    assert len(held) == 1, "of 99 questions with passages there is no 100th"


def test_a_labeled_set_has_titles_and_first_sentences(tmp_path: Path) -> None:
    data = write_collection(
        tmp_path / "data",
        [{"_id": "p", "title": "Mill", "text": "It stands. It turns."}, {"_id": "r", "title": "", "text": "Wet."}],
        [{"_id": "q", "text": "what turns"}, {"_id": "s", "text": "what is wet"}],
        {"train": {"q": "p", "s": "r"}, "dev": {"q": "p"}},
    )  # fmt: skip
    assert targets(data, "titles") == ["Mill"], "a passage without a title teaches none"
    assert targets(data, "sentences") == ["It stands.", "Wet."]
    with pytest.raises(QontextError, match="has no question with answers"):
        targets(data, "answers")


def test_questions_are_searched_with_what_was_written(tmp_path: Path) -> None:
    """From a file of questions as DPR publishes it: its ids are those of the run."""
    passages = "id\ttext\ttitle\n1\tthe wheel of a mill\tMill\n2\tthe sail of a boat\tBoat\n"
    (tmp_path / "psgs_w100.tsv").write_text(passages)
    test = tmp_path / "nq-test.qa.csv"
    test.write_text("who grinds\t['mill']\nwhat has a sail\t['boat']\n")
    rows = [{"passage": "0", "query": "a mill", "number": 0}]
    records.write_table(tmp_path / "answers.parquet", records.table_of(rows, records.QUERIES))
    longer = api.expand(tmp_path / "answers.parquet", passages=test, of="queries", out=tmp_path / "longer")
    assert longer.summary["expanded"] == 1 and longer.summary["passages"] == 2
    assert read_queries(longer.path) == {"0": "who grinds\na mill", "1": "what has a sail"}
    index = api.index(tmp_path / "psgs_w100.tsv", backend="bm25", out=tmp_path / "index")
    found = {}
    for name, queries in (("plain", test), ("longer", longer.path)):
        api.retrieve(index.path, queries=queries, out=tmp_path / f"{name}.trec")
        run = read_run(tmp_path / f"{name}.trec")
        found[name] = {query: run[query][0].passage for query in run}
    assert found == {"plain": {"1": "2"}, "longer": {"0": "1", "1": "2"}}


def test_what_is_written_for_queries_is_appended_to_queries_alone(tmp_path: Path) -> None:
    """Questions may have the ids of passages, as DPR's have."""
    data = write_collection(
        tmp_path / "data",
        [{"_id": str(n), "title": f"Mill {n}", "text": f"Mill {n} turns."} for n in range(4)],
        [{"_id": str(n), "text": f"mill {n}"} for n in range(4)],
        {"train": {str(n): str(n) for n in range(4)}, "dev": {"0": "0"}},
    )
    small: dict[str, Any] = {
        "preset": "tiny",
        "vocabulary": 100,
        "steps": 1,
        "batch_size": 2,
        "device": "cpu",
    }
    model = api.train_generator(data, learns="titles", out=tmp_path / "model", **small)
    assert json.loads((model.path / "generator.json").read_text())["learns"] == "titles"
    settings: dict[str, Any] = {"generator": "t5", "model": model.path, "device": "cpu"}
    with pytest.raises(QontextError, match="the model writes titles for queries"):
        api.generate(data, out=tmp_path / "wrong", **settings)
    titles = api.generate(data, of="queries", out=tmp_path / "titles", max_new_tokens=8, **settings)
    with pytest.raises(QontextError, match="was generated from queries, not from passages"):
        api.expand(titles, passages=data, out=tmp_path / "expanded")
    with pytest.raises(QontextError, match="was generated from queries, not from passages"):
        api.filter(titles, passages=data, by="overlap", out=tmp_path / "filtered")
    longer = api.expand(titles, passages=data, of="queries", out=tmp_path / "longer")
    assert read_queries(longer.path).keys() == {"0", "1", "2", "3"}


@pytest.mark.parametrize("repeats", [False, True])
def test_repeating_a_query_is_no_reason_to_drop_a_text(repeats: bool) -> None:
    passage, text = Passage("q", "", "mount everest", "q"), "Mount Everest, Nepal"
    found = clean([text], passage, Counter(), keep_echoes=repeats)
    assert found == ([text] if repeats else [])
