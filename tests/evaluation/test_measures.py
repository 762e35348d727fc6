"""Measures by hand, against pytrec_eval, and against the definition of the MS MARCO task."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest
import pytrec_eval

from qontext.data.collection import load_collection, read_qrels
from qontext.data.records import Hit
from qontext.data.runs import Run
from qontext.evaluation.measures import measure, parse
from qontext.frame.errors import QontextError
from qontext.retrieve.bm25 import Bm25

QRELS = {"q1": {"a": 1, "b": 1}, "q2": {"c": 2, "d": 1}, "q3": {"e": 1}}


def run_of(**rankings: str) -> Run:
    """`run_of(q1="xab")`: for q1 the passages x, a, b in this order."""
    return Run.of(
        Hit(q, p, float(-rank)) for q, passages in rankings.items() for rank, p in enumerate(passages)
    )


def scores(
    run: Run, names: str, qrels: dict[str, dict[str, int]] = QRELS, relevant: int = 1
) -> dict[str, list[float]]:
    measured = measure(run, qrels, parse(names, relevant=relevant), relevant=relevant)
    return {name: column.tolist() for name, column in measured.values.items()}


def test_each_measure_by_hand() -> None:
    values = scores(
        run_of(q1="xayb", q2="dc", q3="xyz"), "MRR@10 R@2 Success@2 R@10 nDCG@10 MAP P@2 Judged@2"
    )
    assert values["MRR@10"] == [1 / 2, 1, 0]
    assert values["R@2"] == [1 / 2, 1, 0]  # of the relevant, how many
    assert values["Success@2"] == [1, 1, 0]  # any of the relevant
    assert values["R@10"] == [1, 1, 0]
    assert values["MAP"] == pytest.approx([(1 / 2 + 2 / 4) / 2, 1, 0])
    assert values["P@2"] == [1 / 2, 1, 0]
    assert values["Judged@2"] == [1 / 2, 1, 0]
    ideal = 2 + 1 / math.log2(3)
    assert values["nDCG@10"][1] == pytest.approx((1 + 2 / math.log2(3)) / ideal)


def test_cutoff_is_inclusive() -> None:
    ranking = run_of(q1="wxya", q2="c", q3="e")
    assert scores(ranking, "MRR@4 MRR@3 MRR")["MRR@4"][0] == 1 / 4
    assert scores(ranking, "MRR@4 MRR@3 MRR")["MRR@3"][0] == 0
    assert scores(ranking, "MRR@4 MRR@3 MRR")["MRR"][0] == 1 / 4


def test_a_query_without_results_scores_zero_and_is_counted() -> None:
    measured = measure(run_of(q1="a", q9="a"), QRELS, parse("MRR@10"))
    assert measured.means["MRR@10"] == pytest.approx(1 / 3)
    assert measured.counts() == {
        "queries": 3,
        "queries_without_results": 2,
        "queries_without_relevant_passages": 0,
        "queries_of_the_run_without_judgments": 1,
    }


def test_a_query_without_relevant_passages_stays_in_the_denominator() -> None:
    measured = measure(run_of(q1="a", q2="x"), {"q1": {"a": 1}, "q2": {"x": 0}}, parse("MRR@10 nDCG@10 R@5"))
    assert measured.means == {"MRR@10": 0.5, "nDCG@10": 0.5, "R@5": 0.5}
    assert measured.without_relevant == 1


def test_grades_below_the_threshold_are_not_relevant_and_the_name_says_so() -> None:
    values = scores(run_of(q2="dc"), "MRR@10 R(rel=1)@1 nDCG@10", relevant=2)
    assert values["MRR(rel=2)@10"][1] == 1 / 2
    assert values["R(rel=1)@1"][1] == 1 / 2  # an explicit threshold stays
    assert values["nDCG@10"][1] == scores(run_of(q2="dc"), "nDCG@10")["nDCG@10"][1]


def test_the_threshold_is_that_of_every_binary_measure() -> None:
    names = "SetP SetR SetF SetP(relative=True) SetAP IPrec@0.1 infAP Accuracy NumRet NumRelRet"
    values = scores(run_of(q2="dc"), names, relevant=2)
    assert {name: round(column[1], 4) for name, column in values.items()} == {
        "SetP(rel=2)": 0.5, "SetR(rel=2)": 1, "SetF(rel=2)": 0.6667, "SetP(relative=True,rel=2)": 1, "SetAP(rel=2)": 0.5,
        "IPrec(rel=2)@0.1": 0.5, "infAP(rel=2)": 0.5, "Accuracy(rel=2)": 0, "NumRet": 2, "NumRelRet(rel=2)": 1,
    }  # fmt: skip
    assert parse(list(values)).keys() == values.keys(), "a name is that of its measure"
    with pytest.raises(QontextError, match=r"NumRel\(rel=2\) cannot be computed"):
        parse("NumRel", relevant=2)


def test_no_relevant_passage_at_all_is_an_error() -> None:
    with pytest.raises(QontextError, match="the minimum relevant grade is 3, the highest grade is 2"):
        measure(run_of(q1="a"), QRELS, parse("MRR@10", relevant=3), relevant=3)


@pytest.mark.parametrize("name", ["MRR@x", "Foo", "R", "nDCG@0", "", "MRR(rel=)@10", "__import__('os')@1"])
def test_unknown_measures_are_a_sentence(name: str) -> None:
    with pytest.raises(QontextError):
        parse(name)


def official_mrr_at_10(ranking: dict[str, list[str]], qrels: dict[str, dict[str, int]]) -> float:
    """The MS MARCO passage task: over all judged queries, 1 / rank of the first relevant one among ten."""
    total = 0.0
    for query, judged in qrels.items():
        for i, passage in enumerate(ranking.get(query, [])[:10]):
            if judged.get(passage, 0) >= 1:
                total += 1 / (i + 1)
                break
    return total / len(qrels)


def test_what_has_no_kernel_is_computed_by_ir_measures() -> None:
    values = scores(run_of(q1="xab", q2="dc"), "Rprec Bpref nDCG(judged_only=True)@2")
    assert values["Rprec"] == [1 / 2, 1, 0]
    assert values["nDCG(judged_only=True)@2"][0] == 1


@pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval is a Perl script")
def test_queries_may_have_any_id_in_a_measure_of_gdeval() -> None:
    qrels = {"what is it?": {"a": 1}, "q-2": {"c": 2}, "q3": {"e": 1}}
    values = measure(Run.of([Hit("q-2", "c", 1.0)]), qrels, parse("ERR@10")).values["ERR@10"]
    assert values.tolist() == pytest.approx([0, 3 / 16, 0], abs=1e-4)


@pytest.mark.parametrize("levels", [1, 3, 1000])
def test_ties_stand_in_the_order_of_trec_eval(levels: int) -> None:
    rng = np.random.default_rng(levels)
    qrels = {
        f"q{q}": {f"p{i}": int(rng.integers(-1, 4)) for i in rng.permutation(40)[:12]} for q in range(60)
    }
    run = Run.of(
        # Differences beyond single precision are ties to trec_eval.
        Hit(query, f"p{i}", float(rng.integers(levels)) + 1e-12 * float(rng.random()))
        for query in qrels
        for i in rng.permutation(60)[:25]
    )
    ours = measure(
        run, qrels, parse("MRR R@5 nDCG@10 nDCG MAP AP@7 P@3 MRR(rel=2) AP(rel=2) Success(rel=3)@4")
    )
    lists = {query: {hit.passage: hit.score for hit in hits} for query, hits in run.items()}
    for level, names in {
        1: {"MRR": "recip_rank", "R@5": "recall_5", "nDCG@10": "ndcg_cut_10", "nDCG": "ndcg", "MAP": "map",
            "AP@7": "map_cut_7", "P@3": "P_3"},
        2: {"MRR(rel=2)": "recip_rank", "AP(rel=2)": "map"},
        3: {"Success(rel=3)@4": "success_4"},
    }.items():  # fmt: skip
        measures = {"recip_rank", "recall.5", "ndcg_cut.10", "ndcg", "map", "map_cut.7", "P.3", "success.4"}
        theirs = pytrec_eval.RelevanceEvaluator(qrels, measures, relevance_level=level).evaluate(lists)
        for name, trec in names.items():
            expected = [theirs[query][trec] for query in ours.queries]
            np.testing.assert_allclose(ours.values[name], expected, atol=1e-6, err_msg=name)


def random_run(qrels: dict[str, dict[str, int]], rng: np.random.Generator, depth: int) -> Run:
    """Results that mix judged passages with others; one query in ten has none."""
    hits = []
    for query, judged in qrels.items():
        if rng.random() < 0.1:
            continue
        pool = [*judged, *(f"other{i}" for i in range(depth))]
        chosen = rng.permutation(len(pool))[:depth]
        hits += [Hit(query, pool[i], score) for i, score in zip(chosen, rng.normal(size=depth).tolist())]
    return Run.of(hits)


def agrees_with_pytrec_eval(run: Run, qrels: dict[str, dict[str, int]]) -> None:
    ours = measure(run, qrels, parse("MRR MRR@10 R@10 Success@5 nDCG@10 nDCG MAP P@10"))
    theirs = pytrec_eval.RelevanceEvaluator(
        qrels, {"recip_rank", "recall.10", "success.5", "ndcg_cut.10", "ndcg", "map", "P.10"}
    ).evaluate({query: {hit.passage: hit.score for hit in hits} for query, hits in run.items()})
    names = {"MRR": "recip_rank", "R@10": "recall_10", "Success@5": "success_5", "nDCG@10": "ndcg_cut_10",
             "nDCG": "ndcg", "MAP": "map", "P@10": "P_10"}  # fmt: skip
    for name, trec in names.items():
        expected = [theirs.get(query, {}).get(trec, 0.0) for query in ours.queries]
        np.testing.assert_allclose(ours.values[name], expected, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("name", "split"), [("cranfield", "test_graded"), ("vaswani", "test")])
def test_agrees_with_pytrec_eval_on_real_runs(shared_data, name: str, split: str) -> None:  # type: ignore[no-untyped-def]
    data = load_collection(shared_data(name))
    run = Bm25.build(data.passages()).search(data.queries(split), 100)
    assert len(run) == len(data.qrels(split))
    agrees_with_pytrec_eval(run, data.qrels(split))


@pytest.mark.parametrize(
    ("file", "queries", "depth"),
    [
        ("qrels.dl19-passage.txt.gz", 43, 200),
        ("qrels.dl20-passage.txt.gz", 54, 200),
        ("qrels.msmarco-passage.dev-subset.txt.gz", 6980, 15),
    ],
)
def test_agrees_with_pytrec_eval_and_the_official_definition(
    shared_data, file: str, queries: int, depth: int
) -> None:  # type: ignore[no-untyped-def]
    qrels = read_qrels(shared_data("msmarco_trecdl") / file)
    assert len(qrels) == queries
    run = random_run(qrels, np.random.default_rng(7), depth)
    agrees_with_pytrec_eval(run, qrels)
    ours = measure(run, qrels, parse("MRR@10"))
    ranking = {query: [hit.passage for hit in hits] for query, hits in run.items()}
    assert ours.means["MRR@10"] == pytest.approx(official_mrr_at_10(ranking, qrels), abs=1e-9)
