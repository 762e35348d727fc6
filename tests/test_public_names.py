"""`import qontext`: fast, typed, and with the names that the README uses."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qontext
from qontext import (
    Bm25,
    Hit,
    Passage,
    QontextError,
    Run,
    Searcher,
    compare,
    evaluate,
    load_qrels,
)

TEXTS = ["The mill grinds flour.", "The boat crosses the river.", "The baker bakes bread of flour."]


def test_the_import_is_light() -> None:
    """A name is imported when it is used; until then nothing heavy is loaded."""
    code = "import sys; before = set(sys.modules); import qontext; print(sorted(sys.modules.keys() - before))"
    loaded = ast.literal_eval(subprocess.check_output([sys.executable, "-c", code], text=True))
    assert {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} == {"qontext"}
    assert {"asyncio", "inspect", "pathlib"}.isdisjoint(loaded)


def test_every_name_is_public_documented_and_has_an_example() -> None:
    assert dir(qontext) == sorted([*qontext.__all__, "__version__", "api"])
    for name in qontext.__all__:
        value = getattr(qontext, name)
        assert value.__name__ == name and value.__module__.startswith("qontext.") and value.__doc__
    with pytest.raises(AttributeError, match="no attribute 'Sercher'"):
        _ = qontext.Sercher  # type: ignore[attr-defined]


def test_functions_stay_functions_after_their_modules_are_imported() -> None:
    code = "import qontext.evaluation.compare, qontext.retrieve.fuse, qontext as q; print(q.evaluate, q.compare, q.fuse)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).count("<function ") == 3


def test_a_searcher_in_memory() -> None:
    search = Searcher.build(TEXTS)
    assert [hit.id for hit in search("who grinds flour?", k=5)] == ["0", "2"]
    assert search("mill") == search.search("mill") and search("zebra") == []
    named = Searcher.build(
        [Passage("a", "Mill", "It grinds flour.", "book"), Passage("b", "", "A boat.", "b")]
    )
    (hit,) = named("the mill")
    assert (hit.id, hit.document, hit.title, hit.text) == ("a", "book", "Mill", "It grinds flour.")
    with pytest.raises(QontextError, match=r"not the string 'docs.jsonl'.*load_passages"):
        Searcher.build("docs.jsonl")
    with pytest.raises(QontextError, match="'a' occurs twice"):
        Searcher.build([Passage("a", "", "stone", "a"), Passage("a", "", "river", "a")])


def test_a_run_is_written_and_read(tmp_path: Path) -> None:
    run = Run.of([Hit("q 1", "p1", 0.1), Hit("q 1", "p2", 1 / 3), Hit("q2", "p1", -1e-30)])
    run.write(tmp_path / "a.trec")
    assert dict(Run.read(tmp_path / "a.trec")) == dict(run) and repr(run) == "Run of 2 queries and 3 hits"
    assert [path.name for path in tmp_path.iterdir()] == ["a.trec"]


def test_bm25_of_texts_and_of_passages_with_ids() -> None:
    by_number = Bm25.build(TEXTS).search({"q": "flour"}, 5)
    by_name = Bm25.build(TEXTS, ["x", "y", "z"]).search({"q": "flour"}, 5)
    assert [hit.passage for hit in by_number["q"]] == ["0", "2"]
    assert [hit.passage for hit in by_name["q"]] == ["x", "z"]
    for ids in (["x"], ["a", "b", "c", "d"]):
        with pytest.raises(QontextError, match=f"ids|{len(ids)}"):
            Bm25.build(TEXTS, ids)


def test_evaluate_takes_objects_and_files(tmp_path: Path) -> None:
    run = Run.of([Hit("q1", "p1", 2.0), Hit("q1", "p2", 1.0)])
    run.write(tmp_path / "run.trec")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tp2\t1\nq2\tp9\t1\n")
    qrels = load_qrels(tmp_path / "qrels.tsv")
    assert qrels == {"q1": {"p2": 1}, "q2": {"p9": 1}}
    scores = evaluate(run, qrels, ["MRR@10", "R@1"])
    assert scores.means == {"MRR@10": 0.25, "R@1": 0.0}
    assert repr(scores) == "Scores of 2 queries: MRR@10 0.2500, R@1 0.0000"
    from_files = evaluate(tmp_path / "run.trec", tmp_path / "qrels.tsv", "MRR@10, R@1")
    assert from_files.means == scores.means
    assert "nDCG@10" in evaluate(run, qrels).means
    with pytest.raises(QontextError, match="no query of the run is judged"):
        evaluate(run, {"other": {"p1": 1}})
    with pytest.raises(QontextError, match="no judgments"):
        evaluate(run, {})


def test_compare_tests_every_pair() -> None:
    dice = np.random.default_rng(0)
    qrels = {f"q{n}": {"p": 1} for n in range(30)}
    runs = {
        name: Run.of([Hit(q, p, float(dice.random() + lift * (p == "p"))) for q in qrels for p in ("p", "x")])
        for name, lift in (("none", 0.0), ("some", 0.2), ("much", 2.0))
    }
    pairs = compare(runs, qrels, "MRR@10 Judged@10")
    assert [(pair.a, pair.b) for pair in pairs] == [("none", "some"), ("none", "much"), ("some", "much")]
    assert {pair.measure for pair in pairs} == {"MRR@10"}
    assert pairs[1].difference.mean > 0 and pairs[1].is_significant()
    assert pairs.means["none"].keys() == {"MRR@10", "Judged@10"} and len(pairs.examples) == 9
    with pytest.raises(QontextError, match="at least two systems"):
        compare({"one": runs["none"]}, qrels)


def test_runs_of_several_seeds_are_one_system() -> None:
    qrels = {f"q{n}": {"p": 1} for n in range(5)}
    best, worst = (
        Run.of([Hit(q, p, s) for q in qrels for p, s in (("p", score), ("x", 1.0))]) for score in (2.0, 0.0)
    )
    compared = compare({"one": best, "two": [best, worst]}, qrels, "MRR@10")
    assert compared.means == {"one": {"MRR@10": 1.0}, "two": {"MRR@10": 0.75}}
    assert compared.as_json()["systems"][1]["spread"]["MRR@10"] == pytest.approx(np.std([1, 0.5], ddof=1))


def test_results_are_tables_in_a_notebook_and_their_names_are_escaped() -> None:
    qrels = {f"q{n}": {"p": 1} for n in range(8)}
    best = Run.of([Hit(q, "p", 1.0) for q in qrels])
    worse = Run.of([Hit(q, id, s) for q in qrels for id, s in (("other", 2.0), ("p", 1.0))])
    pairs = compare({"<b>worse": worse, "best": best}, qrels, "MRR@10")
    pair = pairs[0]
    assert repr(pair) == "Pair(MRR@10: <b>worse → best +0.5000, p .008)"
    assert repr(pairs) == f"Comparison of 2 systems on 8 queries: [{pair!r}]"
    for page in (pair._repr_html_(), pairs._repr_html_()):
        assert "<b>" not in page and "<td>&lt;b&gt;worse → best</td><td>+0.5000</td>" in page
    assert "<caption>Means</caption>" in pairs._repr_html_()
    scores = evaluate(best, qrels, "MRR@10")
    assert scores._repr_html_().endswith(
        "<th>MRR@10</th></tr></thead><tbody><tr><td>1.0000</td></tr></tbody></table>"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "1000"),
        ({"GOMP_SPINCOUNT": "5"}, "5"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_waiting_threads_spin_briefly_unless_the_user_says_otherwise(
    given: dict[str, str], expected: str | None
) -> None:
    ours = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    clean = {name: value for name, value in os.environ.items() if name not in ours}
    code = "import sys, qontext, os; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", str(expected)], "and torch, which reads it, is not loaded yet"


def test_runs_of_other_tools_are_query_to_passage_to_score(tmp_path: Path) -> None:
    plain = {"q": {"b": 1.0, "a": 2}}
    run = Run.of([Hit("q", "a", 2.0), Hit("q", "b", 1.0)])
    qrels = {"q": {"b": 1}}
    assert evaluate(plain, qrels, "MRR@10").means == evaluate(run, qrels, "MRR@10").means == {"MRR@10": 0.5}
    assert qontext.fuse([plain, run])["q"] == qontext.fuse([run, run])["q"]
    (pair,) = compare({"plain": plain, "run": [run, run]}, qrels, "MRR@10")
    assert pair.difference.mean == 0
    assert qontext.mine(plain, qrels)[0].negatives == ["a"]
    for wrong, message in (
        ({"q": ["a"]}, "the results of query 'q' are a list, not passage → score"),
        ({"q": {"a": "high"}}, "a score of the run is not a number"),
        (3, "expected a run, not a int"),
    ):
        with pytest.raises(QontextError, match=message):
            evaluate(wrong, qrels)  # type: ignore[call-overload]


@pytest.mark.parametrize("k", [0, -1, 1.5])
def test_a_number_of_passages_is_at_least_one(k: int) -> None:
    search, run = Searcher.build(TEXTS), Run.of([Hit("q", "0", 1.0), Hit("q", "1", 0.5)])
    calls = [
        lambda: search("flour", k=k),
        lambda: search.run({"q": "flour"}, k),
        lambda: Bm25.build(TEXTS).search({"q": "flour"}, k),
        lambda: qontext.fuse([run, run], k=k),
        lambda: qontext.rerank(run, {"q": "flour"}, TEXTS, [], k=k),
    ]
    for call in calls:
        with pytest.raises(QontextError, match=f"k = {k}: the number of passages must be a whole number"):
            call()


def test_a_question_becomes_a_vector(minilm: Path) -> None:
    retriever = qontext.Retriever(minilm)
    vectors = retriever.encode_queries(["who grinds flour?"])
    assert vectors.shape == (1, retriever.dimension)
    for encode in (retriever.encode_queries, retriever.encode_passages):
        with pytest.raises(QontextError, match=r"expected a list of \w+, not a single text. Write \[text\]"):
            encode("who grinds flour?")
