"""Answer matching as DPR does it, and its files in their published form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from qontext import api
from qontext.data.records import Hit
from qontext.data.runs import Run
from qontext.evaluation import answers
from qontext.evaluation.answers import (
    Question,
    answer_ranks,
    is_questions,
    pattern_matcher,
    read_questions,
    token_matcher,
    tokens,
)
from qontext.evaluation.evaluate import evaluate
from qontext.frame.errors import QontextError


@pytest.mark.parametrize(
    ("answer", "passage", "matches"),
    [
        ("Paris", "It was PARIS, of course", True),
        ("Paris", "a parisian affair", False),  # whole tokens only
        ("new york", "New  York\tCity", True),  # any space is the same
        ("U.S.", "in the U. S. of A", True),  # punctuation is tokens of its own
        ("Beyonce\u0301", "Beyonc\u00e9 sang", True),  # composed and decomposed accents are the same
        ("Beyonce", "Beyonc\u00e9 sang", False),
        ("14 December 1972", "on 14 December 1972 .", True),
        ("14 December", "December 14", False),  # order counts
        ("the the", "the end", False),
    ],
)
def test_token_match(answer: str, passage: str, matches: bool) -> None:
    assert token_matcher([answer])(tokens(passage)) is matches


def test_an_answer_without_tokens_matches_nothing() -> None:
    assert not token_matcher(["", "  "])(tokens("anything"))


def test_patterns() -> None:
    assert pattern_matcher([r"19(72|73)"])("In 1973 it began")
    assert not pattern_matcher([r"^19"])("In 1973")
    with pytest.raises(QontextError, match="not a regular expression"):
        pattern_matcher(["(("])


def test_rank_of_the_first_answer() -> None:
    texts = {"a": "nothing", "b": "it is Rome", "c": "Rome again"}
    questions = {
        "q1": Question("?", ("Rome",)),
        "q2": Question("?", ("Oslo", "nothing")),
        "q3": Question("?", ("x",)),
    }
    run = Run.of([Hit("q1", "a", 3), Hit("q1", "b", 2), Hit("q1", "c", 1), Hit("q2", "a", 1)])
    assert answer_ranks(run, questions, texts, depth=3).tolist() == [2, 1, np.inf]
    assert answer_ranks(run, questions, texts, depth=1).tolist() == [np.inf, 1, np.inf]
    with pytest.raises(QontextError, match="'b', which is not in the passages"):
        answer_ranks(run, questions, {"a": "x"}, depth=3)


def test_patterns_that_take_too_long_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit, the first pattern takes longer than the age of the universe on this passage."""
    monkeypatch.setattr(answers, "PATTERN_SECONDS", 0.05)
    (tmp_path / "docs.tsv").write_text(f"a\t{'a' * 100}!\nb\tthe year 1969\n")
    (tmp_path / "run.trec").write_text(
        "".join(f"{q} Q0 {p} {r} {-r} x\n" for q in "xyz" for r, p in enumerate("ab"))
    )
    rows = {"x": [r"(a|a|aa)*$"], "y": [r"(?<=a+)!", r"\d{4}"], "z": [r"THE\s+(\w+)"]}
    lines = [json.dumps({"_id": id, "question": "?", "answers": patterns}) for id, patterns in rows.items()]
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    summary = api.evaluate(
        tmp_path / "run.trec", tmp_path / "q.jsonl", passages=tmp_path / "docs.tsv", patterns=True,
        measures="Answer@1 Answer@2", out=tmp_path / "scores",
    ).summary  # fmt: skip
    assert summary["queries_timed_out"] == 1
    assert summary["measures"] == {"Answer@1": pytest.approx(1 / 3), "Answer@2": pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    "pattern", ["(", "[", "a**", "x{3,1}", "(?i", "\\", "(" * 5000 + ")" * 5000, "[" + "x" * 9999]
)
def test_what_is_no_pattern_is_one_sentence(pattern: str) -> None:
    with pytest.raises(QontextError, match="is not a regular expression") as error:
        pattern_matcher([pattern])
    assert len(str(error.value)) < 500


def test_dpr_format(tmp_path: Path) -> None:
    # As published: question, tab, a Python list; a field that holds quotes is quoted as in CSV.
    path = tmp_path / "nq-test.qa.csv"
    path.write_text(
        "who got the first nobel prize in physics\t['Wilhelm Conrad Röntgen']\n"
        "when is the next deadpool movie being released\t['May 18 , 2018']\n"
        '"who said ""eureka"""\t[\'Archimedes\', "Archimedes\' bath"]\n',
        encoding="utf-8",
    )
    questions = read_questions(path)
    assert list(questions) == ["0", "1", "2"]
    assert questions["0"] == Question("who got the first nobel prize in physics", ("Wilhelm Conrad Röntgen",))
    assert questions["2"] == Question('who said "eureka"', ("Archimedes", "Archimedes' bath"))
    assert is_questions(path)


def test_json_lines_format(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write('{"_id": "a7", "question": "who?", "answers": ["me", "you"]}\n')
    assert read_questions(path) == {"a7": Question("who?", ("me", "you"))}


@pytest.mark.parametrize("line", ["no tab", "q\tnot a list", "q\t[]", "q\t__import__('os')", "a\tb\tc"])
def test_broken_lines_name_their_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.qa.csv"
    path.write_text(f"fine\t['yes']\n{line}\n")
    with pytest.raises(QontextError, match=r"x\.qa\.csv:2"):
        read_questions(path)


def test_qrels_are_not_questions(tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    path.write_text("query-id\tcorpus-id\tscore\nq\tp\t1\n")
    assert not is_questions(path)


@pytest.mark.parametrize("measure", ["Answer@²", "Answer@0", "Answer@", "MRR@10"])
def test_what_is_no_measure_of_answers_is_one_sentence(measure: str, tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text("0 Q0 p 1 1 x\n")
    (tmp_path / "asked.jsonl").write_text('{"question": "who?", "answers": ["he"]}\n')
    (tmp_path / "passages.tsv").write_text("p\tit is he\n")
    with pytest.raises(QontextError, match="cannot be computed from answers"):
        evaluate(tmp_path / "run.trec", tmp_path / "asked.jsonl", measure, passages=tmp_path / "passages.tsv")
