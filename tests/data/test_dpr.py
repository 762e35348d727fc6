"""The files of the DPR set-up, in the exact form in which they are published."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from qontext.data import dpr, lines
from qontext.data.collection import read_passages, read_queries
from qontext.frame.errors import QontextError


def test_passages_as_a_csv_writer_quotes_them(tmp_path: Path) -> None:
    path = tmp_path / "psgs_w100.tsv.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(
            "id\ttext\ttitle\n"
            '1\t"Salt ( or ; ""table salt"") is a mineral, and a tab\tmay stand here"\tSalt\n'
            '2\tIt is mined.\t"""Salt"" (film)"\n'
        )
    first, second = read_passages(path)
    assert first.id == first.doc == "1"
    assert (first.title, first.text) == (
        "Salt",
        'Salt ( or ; "table salt") is a mineral, and a tab\tmay stand here',
    )
    assert (second.title, second.text) == ('"Salt" (film)', "It is mined.")


def test_a_passage_without_a_title_column(tmp_path: Path) -> None:
    (tmp_path / "psgs.tsv").write_text("id\ttext\ttitle\n1\tx\ty\n2\tx\n")
    with pytest.raises(QontextError, match=r"psgs\.tsv:3: has 2 columns, expected id<tab>text<tab>title"):
        list(read_passages(tmp_path / "psgs.tsv"))


QUESTIONS = (
    "who discovered salt\t['Nobody']\n"
    "Which lake is called \"dead\"?\t\"['Dead Sea', \"\"Lot's lake\"\", 'al-Bahr al-Mayyit']\"\n"
    '"""Salt"" is a film of which year?"\t[\'2010\']\n'
)  # fmt: skip


@pytest.mark.parametrize("name", ["nq-test.qa.csv", "trivia-test.qa.csv.gz", "mine.tsv"])
def test_questions_are_queries_with_the_number_of_their_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(QUESTIONS.encode()) if name.endswith(".gz") else QUESTIONS.encode())
    assert read_queries(path) == {
        "0": "who discovered salt",
        "1": 'Which lake is called "dead"?',
        "2": '"Salt" is a film of which year?',
    }
    assert [answers for *_, answers in dpr.questions(path)] == [
        ("Nobody",),
        ("Dead Sea", "Lot's lake", "al-Bahr al-Mayyit"),
        ("2010",),
    ]


def training_questions(count: int) -> list[dict[str, object]]:
    context = {
        "title": "Salt",
        "text": "is [mined], {so}",
        "score": 1000,
        "title_score": 1,
        "passage_id": "3",
    }
    return [
        {
            "dataset": "nq_dev_psgs_w100",
            "question": f"who asks {number}, and \"why\"?",
            "answers": [f"person {number}", "nobody"],
            "positive_ctxs": [context],
            "negative_ctxs": [],
            "hard_negative_ctxs": [context] * 3,
        }
        for number in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("indent", [4, None])
def test_training_files_are_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None
) -> None:
    monkeypatch.setattr(lines, "_BLOCK", 500)
    path = tmp_path / "biencoder-nq-dev.json"
    path.write_text(json.dumps(training_questions(20), indent=indent))
    assert dpr.is_questions(path)
    questions = list(dpr.questions(path))
    assert len(questions) == 20
    assert questions[19][1:] == ("19", 'who asks 19, and "why"?', ("person 19", "nobody"))
    assert list(read_queries(path))[-1] == "19"


def test_the_passages_of_a_training_file(tmp_path: Path) -> None:
    """The two published spellings of a passage's id; a question without positives is left out, and keeps its number."""
    rows: list[dict[str, Any]] = [
        {**training_questions(1)[0], "positive_ctxs": [{"passage_id": "1"}, {"psg_id": 2}],
         "hard_negative_ctxs": [{"psg_id": 3}, {"psg_id": 2}, {"psg_id": 3}]},
        {**training_questions(1)[0], "positive_ctxs": []},
        {**training_questions(1)[0], "positive_ctxs": [{"passage_id": "4"}], "hard_negative_ctxs": []},
    ]  # fmt: skip
    path = tmp_path / "biencoder-trivia-train.json"
    path.write_text(json.dumps(rows))
    assert dpr.is_training_file(path)
    first, second = dpr.labeled(path)
    assert first == ("0", 'who asks 0, and "why"?', ["1", "2"], ["3"])
    assert (second[0], second[2:]) == ("2", (["4"], []))
    for wrong, message in (
        ({"positive_ctxs": None}, "question 1: expected a list of passages as 'positive_ctxs'"),
        ({"hard_negative_ctxs": [{"text": "x"}]}, "the passage_id in 'hard_negative_ctxs' is missing"),
    ):
        path.write_text(json.dumps([{**rows[0], **wrong}]))
        with pytest.raises(QontextError, match=message):
            list(dpr.labeled(path))


def test_a_list_that_was_cut_off_is_told(tmp_path: Path) -> None:
    path = tmp_path / "biencoder-nq-dev.json"
    path.write_text(json.dumps(training_questions(3), indent=4)[:-30])
    with pytest.raises(QontextError, match=r"dev\.json: is not a JSON list, or is truncated"):
        list(dpr.questions(path))


def test_other_files_are_not_taken_for_questions(tmp_path: Path) -> None:
    for name, text in {
        "q.tsv": "q1\twhat is salt\n",
        "q.json": '{"_id": "q1", "text": "what is salt"}\n',
    }.items():
        (tmp_path / name).write_text(text)
        assert not dpr.is_questions(tmp_path / name)
        assert read_queries(tmp_path / name) == {"q1": "what is salt"}
