"""The verb: what it reports and keeps, and a sentence for every file that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from qontext import api
from qontext.evaluation.evaluate import evaluate
from qontext.frame import artifacts
from qontext.frame.errors import QontextError

QRELS = "q1 0 a 1\nq1 0 b 0\nq2 0 c 2\nq3 0 d 1\n"
RUN = "q1 Q0 a 1 3.0 x\nq1 Q0 b 2 2.0 x\nq2 Q0 a 1 2.0 x\nq2 Q0 c 2 1.5 x\nq9 Q0 a 1 1.0 x\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "run.trec").write_text(RUN)
    (tmp_path / "qrels.txt").write_text(QRELS)
    return tmp_path / "run.trec", tmp_path / "qrels.txt"


def test_means_over_all_judged_queries(files: tuple[Path, Path]) -> None:
    summary = evaluate(*files, measures="MRR@10 Success@1").summary
    assert summary["measures"] == {"MRR@10": pytest.approx(0.5), "Success@1": pytest.approx(1 / 3)}
    assert (summary["queries"], summary["queries_without_results"]) == (3, 1)
    assert summary["queries_of_the_run_without_judgments"] == 1
    assert summary["benchmark"] is None


def test_kept_values_per_query(files: tuple[Path, Path], tmp_path: Path) -> None:
    evaluation = api.evaluate(*files, measures="MRR@10 nDCG@10", out=tmp_path / "out")
    table = pq.read_table(evaluation.path / "queries.parquet").to_pydict()
    assert table["query"] == ["q1", "q2", "q3"]
    assert table["MRR@10"] == [1, 0.5, 0]
    assert (
        json.loads((evaluation.path / "scores.json").read_text())["measures"]
        == evaluation.summary["measures"]
    )
    curves = json.loads((evaluation.path / "curves.json").read_text())
    assert curves["curves"]["Success"][:2] == pytest.approx([1 / 3, 2 / 3])
    assert artifacts.open_artifact(tmp_path / "out").verb == "evaluate"


def test_a_search_directory_is_a_run(files: tuple[Path, Path]) -> None:
    run, qrels = files
    assert evaluate(run.parent, qrels).summary == evaluate(run, qrels).summary


def test_the_threshold_reaches_measures_and_curves(files: tuple[Path, Path], tmp_path: Path) -> None:
    evaluation = api.evaluate(*files, measures="MRR@10 nDCG@10", relevant=2, out=tmp_path / "out")
    assert evaluation.summary["measures"]["MRR(rel=2)@10"] == pytest.approx(0.5 / 3)
    assert evaluation.summary["queries_without_relevant_passages"] == 2
    assert json.loads((evaluation.path / "curves.json").read_text())["curves"]["R"][1] == pytest.approx(1 / 3)


def test_trec_dl_counts_grades_from_2(shared_data, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    qrels = shared_data("msmarco_trecdl") / "qrels.dl19-passage.txt.gz"
    (tmp_path / "r.trec").write_text("19335 Q0 1017759 1 1.0 x\n")
    summary = evaluate(tmp_path / "r.trec", qrels).summary
    assert summary["benchmark"] == "trec-dl-2019"
    assert summary["queries"] == 43
    assert {"nDCG@10", "MRR(rel=2)@10"} <= set(summary["measures"])


def test_a_query_that_is_a_passage_does_not_find_itself(shared_data, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    qrels = shared_data("msmarco_trecdl") / "qrels.beir-v1.0.0-arguana.test.txt.gz"
    query, right = "test-environment-aeghhgwpe-pro02a", "test-environment-aeghhgwpe-pro02b"
    (tmp_path / "r.trec").write_text(f"{query} Q0 {query} 1 9.0 x\n{query} Q0 {right} 2 8.0 x\n")
    summary = evaluate(tmp_path / "r.trec", qrels, measures="nDCG@10").summary
    assert summary["measures"]["nDCG@10"] == pytest.approx(1 / 1406)


def test_answers(tmp_path: Path) -> None:
    (tmp_path / "psgs.tsv").write_text("p1\tRome is old\np2\tOslo is cold\n")
    (tmp_path / "q.qa.csv").write_text("where?\t['Rome']\nand?\t['Bergen']\nnone?\t['x']\n")
    (tmp_path / "r.trec").write_text("0 Q0 p2 1 2.0 x\n0 Q0 p1 2 1.0 x\n1 Q0 p2 1 1.0 x\n")
    evaluation = evaluate(
        tmp_path / "r.trec",
        tmp_path / "q.qa.csv",
        passages=tmp_path / "psgs.tsv",
        measures="Answer@1 Answer@2",
    )
    assert evaluation.summary["measures"] == {"Answer@1": 0, "Answer@2": pytest.approx(1 / 3)}
    assert evaluation.summary["queries_without_results"] == 1
    with pytest.raises(QontextError, match="Add --passages"):
        evaluate(tmp_path / "r.trec", tmp_path / "q.qa.csv")
    with pytest.raises(QontextError, match="'MRR@10' cannot be computed from answers"):
        evaluate(
            tmp_path / "r.trec", tmp_path / "q.qa.csv", passages=tmp_path / "psgs.tsv", measures="MRR@10"
        )


def test_a_report_of_answers_has_no_examples(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "psgs.tsv").write_text("a\tRome is old\nb\tOslo is cold\nc\tBergen\n")
    rows = [{"_id": f"q{n}", "question": "where?", "answers": ["Rome"]} for n in (1, 2, 3)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    (data / "corpus.jsonl").write_text('{"_id": "a", "text": "Rome is old"}\n')
    (data / "queries.jsonl").write_text('{"_id": "q1", "text": "where?"}\n')
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\ta\t1\n")
    made = [
        api.evaluate(files[0], tmp_path / "q.jsonl", passages=tmp_path / "psgs.tsv", out=tmp_path / name).path
        for name in ("x", "y")
    ]
    assert api.report(made, data=data, out=tmp_path / "report").path.is_dir()


@pytest.mark.parametrize(
    ("qrels", "message"),
    [
        ({"q1": {"a": None}}, "the grade None of query 'q1' is no integer"),
        ({"q1": {"a": 0.5}}, "the grade 0.5 of query 'q1' is no integer"),
        ({"q1": ["a"]}, "the judgments of query 'q1' are a list"),
    ],
)
def test_judgments_in_memory_are_checked(files: tuple[Path, Path], qrels: object, message: str) -> None:
    with pytest.raises(QontextError, match=message):
        evaluate(files[0], qrels, "MRR@10")  # type: ignore[arg-type]


def test_ids_in_memory_may_be_numbers() -> None:
    for grade in (1, 1.0, np.float64(1), np.True_):
        scores = evaluate({1: {2: 1.0}}, {1: {2: grade}}, "MRR@10")  # type: ignore[dict-item]
        assert scores.means == {"MRR@10": 1.0}


def test_the_next_stage(files: tuple[Path, Path], tmp_path: Path) -> None:
    evaluation = api.evaluate(*files, next_run=files[0], out=tmp_path / "out")
    curves = json.loads((evaluation.path / "curves.json").read_text())["curves"]
    # The run foresees itself as far as it goes: two of the 50 for q1 and q2; q9 is not judged.
    assert curves["nb-recall^50"][1] == pytest.approx(2 / 50)
    (tmp_path / "next.trec").write_text("q9 Q0 a 1 1.0 x\n")
    with pytest.raises(QontextError, match="no query of the next run has judgments"):
        api.evaluate(*files, next_run=tmp_path / "next.trec", out=tmp_path / "unjudged")


@pytest.mark.parametrize(
    ("run", "qrels", "message"),
    [
        (QRELS, RUN, "has 6 columns"),
        (RUN.replace("q", "z"), QRELS, "the run has ids like 'z1', the judgments like 'q1'"),
        ("q1 Q0 a 1 nan x\n", QRELS, r"score .* is nan"),
        ("q1 Q0 a 1 2.0 x\nq1 Q0 a 2 1.0 x\n", QRELS, "occurs twice among the results"),
        ("q1 Q0 a 1 2.0 x\nq1 Q0 b 1 1.0 x\nq1 Q0 c 2 0.5 x\n", QRELS, "rank 1 occurs twice for query 'q1', with"),
        ("q1 Q0 a 1 1 x\nq1 Q0 b 2 2 x\nq1 Q0 c 3 3 x\n", QRELS, "the scores are distances"),
        ("q1 Q0 a 2.5 1 x\nq1 Q0 b 1.5 2 x\n", QRELS, "rank and score columns are swapped"),
        ("q1 a 2.0\n", QRELS, "Expected 6 columns"),
        (RUN, "q1 0 a 0\nq2 0 c 0\n", "no passage is judged relevant"),
        (RUN, "q1 0 a 0.73\n", "the grade is '0.73'"),
        (RUN, "", "no judgments"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(tmp_path: Path, run: str, qrels: str, message: str) -> None:
    (tmp_path / "r.trec").write_text(run)
    (tmp_path / "q.txt").write_text(qrels)
    with pytest.raises(QontextError, match=message):
        evaluate(tmp_path / "r.trec", tmp_path / "q.txt")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("q1 Q0 zz 1 2.0 x\n", "none of its passages is judged"),
        ("q1 Q0 a 1 2.0 x\n", "has results for 1 of 3 judged queries"),
        (
            "q1 Q0 a 1 1.0 x\nq1 Q0 b 2 2.0 x\nq1 Q0 c 3 1.5 x\nq2 Q0 c 1 1.0 x\n",
            "ranks contradict scores for 1 of 2",
        ),
    ],
)
def test_what_is_odd_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: str, message: str
) -> None:
    (tmp_path / "r.trec").write_text(run)
    (tmp_path / "q.txt").write_text(QRELS)
    evaluate(tmp_path / "r.trec", tmp_path / "q.txt")
    assert message in capsys.readouterr().err


def test_a_threshold_above_all_grades(files: tuple[Path, Path]) -> None:
    with pytest.raises(QontextError, match="the minimum relevant grade is 3, the highest grade is 2"):
        evaluate(*files, relevant=3)


def test_graded_judgments_are_noted(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(*files)
    assert "graded up to 2: MRR, recall and MAP count every grade from 1" in capsys.readouterr().err
