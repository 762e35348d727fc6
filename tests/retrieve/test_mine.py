from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import qontext
from qontext import Hit, Run, api
from qontext.data.collection import read_passages
from qontext.finetune.negatives import mine
from qontext.finetune.negatives.groups import Group, read_groups
from qontext.finetune.negatives.sources import Corpus
from qontext.frame.errors import QontextError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """For q0 (positive p00) and q1 (positive p05): p00 … p19, with scores 20 … 1. Other queries have no results."""
    rows = [f"{q} Q0 p{i:02d} {i + 1} {20 - i} x\n" for q in ("q0", "q1") for i in range(20)]
    (tmp_path / "run").write_text("".join(rows))
    return tmp_path / "run"


def mined(run: Path, beir: Path, out: Path, **settings: Any) -> tuple[dict[str, Group], dict[str, Any]]:
    artifact = api.mine(run, beir / "qrels" / "train.tsv", data=beir, out=out, **settings)
    return {group.query: group for group in read_groups(artifact.path)}, artifact.summary


def test_every_query_gets_a_group_without_its_positives(run: Path, beir: Path, tmp_path: Path) -> None:
    groups, summary = mined(run, beir, tmp_path / "g", depth=10, per_query=100)
    assert len(groups) == 8 and groups["q0"].text.startswith("chapter 0")
    assert groups["q0"].negatives == [f"p{i:02d}" for i in range(1, 10)]
    assert groups["q1"].positives == ["p05"] and "p05" not in groups["q1"].negatives
    assert groups["q2"].negatives == [] and summary["queries_without_negatives"] == 6
    assert summary["queries_with_too_few_negatives"] == 8
    assert summary["positives_removed"] == 2 and summary["queries_not_in_a_run"] == 6


def test_skip_depth_and_draws(run: Path, beir: Path, tmp_path: Path) -> None:
    groups, _ = mined(run, beir, tmp_path / "a", skip=3, depth=8, sample="top", per_query=4)
    assert groups["q0"].negatives == ["p03", "p04", "p05", "p06"]
    assert groups["q1"].negatives == ["p03", "p04", "p06", "p07"]
    drawn, _ = mined(run, beir, tmp_path / "b", per_query=5)
    again, _ = mined(run, beir, tmp_path / "c", per_query=5)
    other, _ = mined(run, beir, tmp_path / "d", per_query=5, seed=1)
    assert drawn == again and drawn["q0"] != other["q0"]
    assert len(set(drawn["q0"].negatives)) == 5
    assert drawn["q0"].negatives == sorted(drawn["q0"].negatives), "hardest first"


def test_what_a_query_gets_depends_on_no_other(run: Path, beir: Path, tmp_path: Path) -> None:
    whole, _ = mined(run, beir, tmp_path / "a", per_query=5, random=3)
    (beir / "qrels" / "train.tsv").write_text("q1\tp05\t1\n")
    alone, _ = mined(run, beir, tmp_path / "b", per_query=5, random=3)
    assert alone["q1"] == whole["q1"]


def test_a_limit_takes_some_queries(run: Path, beir: Path, tmp_path: Path) -> None:
    groups, _ = mined(run, beir, tmp_path / "a", limit=7)
    others, _ = mined(run, beir, tmp_path / "b", limit=7, seed=3)
    assert len(groups) == len(others) == 7 and groups.keys() != others.keys()
    assert mined(run, beir, tmp_path / "c", limit=100)[1]["queries"] == 8


def test_search_asks_those_queries_that_mine_draws(run: Path, beir: Path, tmp_path: Path) -> None:
    groups, _ = mined(run, beir, tmp_path / "a", limit=5, seed=3)
    run_of_five = api.retrieve(bm25=True, data=beir, split="train", limit=5, seed=3, out=tmp_path / "run-5")
    assert run_of_five.summary["queries"] == 5
    assert {line.split()[0] for line in (run_of_five.path / "run.trec").open()} == groups.keys()


def test_filters_by_score(run: Path, beir: Path, tmp_path: Path) -> None:
    # q1's positive p05 has score 15.
    groups, summary = mined(run, beir, tmp_path / "a", margin=3.0, per_query=100)
    assert groups["q1"].negatives == [f"p{i:02d}" for i in range(8, 20)]
    assert (
        groups["q0"].negatives == [f"p{i:02d}" for i in range(3, 20)] and summary["removed_by_score"] == 7 + 2
    )


def test_a_cross_encoders_scores_decide_instead(run: Path, beir: Path, tmp_path: Path) -> None:
    (tmp_path / "teacher").write_text("q0 Q0 p00 1 5 x\nq0 Q0 p01 2 4.5 x\nq0 Q0 p02 3 -3 x\n")
    groups, summary = mined(run, beir, tmp_path / "a", scores=tmp_path / "teacher", margin=1.0, per_query=100)
    assert groups["q0"].negatives == ["p02"], "too good: p01; not scored: the others"
    assert summary["queries_whose_positive_has_no_score"] == 1


def test_random_and_in_document_negatives(run: Path, beir: Path, tmp_path: Path) -> None:
    groups, summary = mined(run, beir, tmp_path / "a", per_query=0, in_document=5, random=4)
    assert summary["queries_without_negatives"] == 0
    # p05 is in document d1 with p03 and p04.
    assert {"p03", "p04"} <= set(groups["q1"].negatives) and len(groups["q1"].negatives) >= 6 - 2
    assert all(not set(group.positives) & set(group.negatives) for group in groups.values())


def test_several_runs_add_up(run: Path, beir: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("q0 Q0 p50 1 1 x\nq2 Q0 p51 1 1 x\nq0 Q0 p01 2 0.5 x\n")
    groups, _ = mined(run, beir, tmp_path / "a", also=[str(tmp_path / "other")], sample="top", per_query=2)
    assert groups["q0"].negatives == ["p01", "p02", "p50"] and groups["q2"].negatives == ["p51"]


def test_a_group_that_mixes_all_kinds_of_negatives() -> None:
    """Seven passages, a1 the positive: each other one is a negative once, in the order of the kinds."""
    words, meaning = (
        Run.of(Hit("q", name, -rank) for rank, name in enumerate(names.split()))
        for names in ("b1 a1 c1", "a1 c1 d1 b1")
    )
    documents = {"a1": "a", "a2": "a", "a3": "a", "b1": "b", "c1": "c", "d1": "d", "e1": "e"}
    kinds = {"depth": 3, "per_query": 2, "in_document": 5, "random": 6}

    def negatives(documents: dict[str, str], **kinds: int) -> list[str]:
        passages = [qontext.Passage(name, "", "mill", document) for name, document in documents.items()]
        (group,) = qontext.mine([words, meaning], {"q": {"a1": 1}}, {"q": "flour?"}, passages, **kinds)
        assert (group.query, group.text, group.positives) == ("q", "flour?", ["a1"])
        return group.negatives

    mixed = negatives(documents, **kinds)
    assert mixed[:3] == ["b1", "c1", "d1"], "of both runs; c1 is in both, b1 of the second below its depth"
    assert sorted(mixed[3:5]) == ["a2", "a3"], "of the positive's document"
    assert mixed[5:] == ["e1"], "of all passages, what is left"
    alone = {name: name for name in documents}
    assert negatives(alone, **{**kinds, "random": 0}) == ["b1", "c1", "d1"], "no passage shares a document"
    assert sorted(negatives(alone, **kinds)) == ["a2", "a3", "b1", "c1", "d1", "e1"]


def test_published_files_are_read_directly(beir: Path, tmp_path: Path) -> None:
    triples = tmp_path / "qidpidtriples.train.tsv.gz"
    triples.write_bytes(gzip.compress(b"q0\tp00\tp07\nq1\tp05\tp09\nq0\tp00\tp02\n"))
    groups, _ = mined(triples, beir, tmp_path / "a")
    assert groups["q0"].negatives == ["p07", "p02"] and groups["q1"].negatives == ["p09"]
    rows = [{"qid": "q0", "pos": ["p00"], "neg": {"bm25": ["p01", "p00"], "dense": ["p02", "p01", "p03"]}}]
    hard = tmp_path / "msmarco-hard-negatives.jsonl.gz"
    hard.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    groups, _ = mined(hard, beir, tmp_path / "b")
    assert groups["q0"].negatives == ["p01", "p02", "p03"]


def test_dpr_s_training_file_has_judgments_questions_and_negatives(
    run: Path, beir: Path, tmp_path: Path
) -> None:
    rows = [
        {"question": f"question {n}", "answers": ["x"], "positive_ctxs": [{"passage_id": f"p0{n}"}],
         "hard_negative_ctxs": [{"passage_id": "p40"}, {"passage_id": "p41"}]}
        for n in range(2)
    ]  # fmt: skip
    train = tmp_path / "biencoder-nq-train.json"
    train.write_text(json.dumps(rows))
    (tmp_path / "other").write_text("0 Q0 p50 1 2 x\n0 Q0 p00 2 1 x\n1 Q0 p51 1 2 x\n")
    mined_groups = api.mine(
        tmp_path / "other", train, also=(str(train),), queries=train, passages=beir, out=tmp_path / "groups"
    )
    first, second = read_groups(mined_groups.path)
    assert first == Group("0", "question 0", ["p00"], ["p50", "p40", "p41"])
    assert second.negatives == ["p51", "p40", "p41"]
    rows[0]["answers"] = [next(p.text for p in read_passages(beir) if p.id == "p50").upper()]
    train.write_text(json.dumps(rows))
    settings = {"also": (str(train),), "queries": train, "passages": beir, "answers": train}
    mined_groups = api.mine(tmp_path / "other", train, **settings, out=tmp_path / "without-answers")
    assert next(read_groups(mined_groups.path)).negatives == ["p40", "p41"], "p50 has the answer"
    assert mined_groups.summary["removed_by_answer"] == 1
    drawn = {"random": 200, "in_document": 200}  # all other passages
    mined_groups = api.mine(tmp_path / "other", train, **settings, **drawn, out=tmp_path / "drawn")
    first, second = read_groups(mined_groups.path)
    assert "p50" not in first.negatives and "p50" in second.negatives
    assert len(first.negatives) == len(second.negatives) - 1
    (tmp_path / "others.tsv").write_text("another question\t['x']\n")
    with pytest.raises(QontextError, match="its question '0' is not that of the queries"):
        api.mine(
            tmp_path / "other", train, **{**settings, "answers": tmp_path / "others.tsv"}, out=tmp_path / "c"
        )
    assert list(read_groups(train)) == [
        Group(str(n), f"question {n}", [f"p0{n}"], ["p40", "p41"]) for n in (0, 1)
    ]


@pytest.mark.parametrize(
    ("qrels", "message"),
    [
        ("p00\tq0\t1\n", "is a passage: the columns are swapped"),
        ("q0\tp99\t1\n", "the passage 'p99', which is not in the passages"),
        ("q99\tp00\t1\n", "the query 'q99', which is not in the queries"),
        ("q0\tp00\t0\n", "no query has a positive"),
        ("q5\tp00\t1\n", "no query got a negative"),
    ],
)
def test_judgments_that_do_not_fit_are_told(
    run: Path, beir: Path, tmp_path: Path, qrels: str, message: str
) -> None:
    (beir / "qrels" / "train.tsv").write_text(qrels)
    with pytest.raises(QontextError, match=message):
        mined(run, beir, tmp_path / "g")


def test_ids_of_passages_take_some_bytes_each() -> None:
    """A Python string and a dictionary's entry take more than a hundred."""
    count, size = 100_000, 10_000

    def columns(count: int) -> Iterator[tuple[pa.Array, pa.Array]]:
        for first in range(0, count, size):
            numbers = range(first, first + size)
            yield (
                pa.array([f"passage-{number}" for number in numbers]),
                pa.array([f"document-{number // 10}" for number in numbers]),
            )

    Corpus(columns(1), seed=1)  # imports what it needs
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    corpus = Corpus(columns(count), seed=1)
    held = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
    tracemalloc.stop()
    assert held < 60 * count, held / count
    assert corpus.rows([f"passage-{count - 1}", "passage-x"]).tolist() == [count - 1, -1]


def test_a_run_over_other_passages_is_told(beir: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q0 Q0 stranger 1 1 x\n")
    with pytest.raises(QontextError, match="names the passage 'stranger'"):
        mined(tmp_path / "run", beir, tmp_path / "g")


def test_queries_without_judgments_are_labeled_by_a_cross_encoder(beir: Path, tmp_path: Path) -> None:
    """q0: shares .90, .09 and .01; q1: no passage has half; q2: one passage alone has all."""
    scores = {
        "q0": {"p03": 4.5, "p01": 2.2, "p02": 0.0},
        "q1": {"p05": 1.0, "p06": 1.0, "p07": 0.9},
        "q2": {"p09": -3.0},
    }
    rows = [f"{q} Q0 {p} 1 {score} x\n" for q, own in scores.items() for p, score in own.items()]
    (tmp_path / "scored").write_text("".join(rows))
    settings = {"data": beir, "scores": tmp_path / "scored", "margin": 4.0}
    artifact = api.mine(
        tmp_path / "scored", tmp_path / "scored", positives_share=0.5, out=tmp_path / "g", **settings
    )
    groups = {group.query: group for group in read_groups(artifact.path)}
    assert {name: group.positives for name, group in groups.items()} == {"q0": ["p03"], "q2": ["p09"]}
    assert groups["q0"].negatives == ["p02"], "the other is within the margin of the positive"
    assert artifact.summary["queries_without_positives"] == 1


def test_shards_report_what_one_process_reports(
    run: Path, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts of parts that others made are kept beside them."""
    monkeypatch.setattr(mine, "PART", 3)
    whole = api.mine(run, beir / "qrels" / "train.tsv", data=beir, depth=10, out=tmp_path / "whole")
    for number in (1, 0):
        parts = api.mine(
            run,
            beir / "qrels" / "train.tsv",
            data=beir,
            depth=10,
            shard=f"{number}/2",
            out=tmp_path / "parts",
        )
    assert parts.digest == whole.digest and parts.summary == whole.summary
    assert parts.summary["queries_without_negatives"] == 6


def test_a_fruitless_search_for_negatives_leaves_nothing_behind(
    run: Path, beir: Path, tmp_path: Path
) -> None:
    with pytest.raises(QontextError, match="no query got a negative"):
        mined(run, beir, tmp_path / "g", margin=99.0)
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"depth": 10, "per_query": 3},
        {"skip": 3, "depth": 8, "sample": "top", "per_query": 4},
        {"margin": 2.5, "seed": 1},
        {"per_query": 5, "random": 3, "in_document": 2},
    ],
)
def test_negatives_of_a_run_in_memory_are_those_of_the_command(
    run: Path, beir: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    expected, _ = mined(run, beir, tmp_path / "g", **settings)
    passages, queries = qontext.load_passages(beir), qontext.load_queries(beir)
    groups = qontext.mine(
        Run.read(run), qontext.load_qrels(beir, split="train"), queries, passages, **settings
    )
    assert {group.query: group for group in groups} == expected
    assert qontext.mine(run, beir, passages=passages, **settings) == groups, "the folder has the queries, too"
    groups.write(tmp_path / "groups.parquet")
    assert list(read_groups(tmp_path / "groups.parquet")) == groups


def test_groups_are_a_table_in_a_notebook(run: Path) -> None:
    groups = qontext.mine([run, run], {"q0": {"p00": 1}}, {"q0": "<i>mill"}, depth=4)
    assert (
        repr(groups) == "1 groups with 3 negatives"
        and "<td>&lt;i&gt;mill</td><td>1</td><td>3</td>" in groups._repr_html_()
    )


def test_mistakes_in_memory_are_told(run: Path, tmp_path: Path) -> None:
    qrels = {"q0": {"p00": 1}}
    bare = qontext.mine(run, qrels)
    with pytest.raises(QontextError, match=r"'q0' has no text.*Pass queries="):
        bare.write(tmp_path / "groups.parquet")
    for message, arguments in {
        "no query has a positive": {"qrels": {"q0": {"p00": 0}}},
        "no query got a negative": {"qrels": {"q9": {"p00": 1}}},
        "need passages": {"random": 2},
        "names the query 'q0', which is not in the queries|name the query 'q0'": {"queries": {"q1": "mill"}},
        "name the passage 'p00', which is not": {"passages": [qontext.Passage("x", "", "mill", "x")]},
        "names* the passage 'p00', which is not": {"passages": []},
    }.items():
        with pytest.raises(QontextError, match=message):
            qontext.mine(run, **{"qrels": qrels, **arguments})
