"""Answers that explain themselves: what found them, how strong that is, what stands beside them; and sub-queries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.adapt.conftest import finished, small_encoder  # noqa: F401

from qontext import api
from qontext.data.runs import read_run
from qontext.frame.errors import QontextError
from qontext.retrieve.ask.evidence import matched_words
from qontext.retrieve.ask.questions import SubQuery, joined, parse
from qontext.retrieve.fuse import hybrid
from qontext.retrieve.searcher import Searcher

TEXTS = ["The mill grinds flour for bread.", "A boat crosses the river.", "The oven bakes bread. It is hot."]
QUESTION = "Which year was the bell of Corrie 12 repaired?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two documents of several passages, and a short one, indexed by words."""
    root = tmp_path_factory.mktemp("grouped")
    docs = root / "docs.jsonl"
    long = " ".join(f"The keeper of lamp {number} climbs the stair at dusk." for number in range(40))
    rows = [{"_id": "a", "text": long}, {"_id": "b", "text": long.replace("dusk", "dawn")}]
    rows.append({"_id": "c", "text": "The stair is steep."})
    docs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    api.refresh(root / "made", source=[docs], words=True)
    return root


def test_words_are_explained_by_their_weights() -> None:
    searcher = Searcher.build(TEXTS)
    answer, _ = searcher.search("bread from the mill", explain=True)
    assert answer.evidence is not None and [part.part for part in answer.evidence.parts] == ["words"]
    assert list(answer.evidence.words) == ["mill", "bread"], "the rarer word weighs more"
    assert sum(answer.evidence.words.values()) == pytest.approx(answer.score, abs=1e-3)
    assert matched_words(searcher.collection.lexical.bm25, "boats bread", "0") == {
        "bread": answer.evidence.words["bread"]
    }


def test_a_question_is_encoded_once_for_all_its_hits(finished: Any, monkeypatch: Any) -> None:  # noqa: F811
    searcher = Searcher(finished.out)
    searcher.system = "hybrid-start" if searcher.system.encoder == "start" else "hybrid"
    encoder, kinds = searcher.collection.encoder, []
    encode = encoder.encode

    def counted(texts: Any, kind: Any) -> Any:
        kinds.append(kind)
        return encode(texts, kind)

    monkeypatch.setattr(encoder, "encode", counted)
    counts = []
    for k in (1, 5):
        kinds.clear()
        searcher.search(QUESTION, k=k, explain=True)
        counts.append(kinds.count("query"))
    assert counts[0] == counts[1]


def test_parts_are_explained_by_their_ranks_and_the_nearest_sentence(finished: Any) -> None:  # noqa: F811
    searcher = Searcher(finished.out)
    searcher.system = "hybrid-start" if searcher.system.encoder == "start" else "hybrid"
    answer = searcher.search(QUESTION, k=3, explain=True)[0]
    assert answer.evidence is not None
    assert [part.part for part in answer.evidence.parts] == ["words", "meaning", "both"]
    assert answer.evidence.parts[-1].rank == 1
    assert answer.evidence.sentence in " ".join(answer.text.split())
    assert -1 <= (answer.evidence.similarity or 0) <= 1
    assert json.loads(json.dumps(answer.as_json()))["evidence"]["parts"][0]["part"] == "words"


def test_a_document_is_found_once_by_its_best_passage(folder: Path) -> None:
    searcher = Searcher(folder / "made")
    passages = searcher.search("the stair of the keeper of lamp 7", k=5)
    assert len({answer.document for answer in passages}) < len(passages)
    documents = searcher.search("the stair of the keeper of lamp 7", k=5, group="document")
    assert sorted(answer.document for answer in documents) == ["a", "b", "c"]
    assert documents[0].id == passages[0].id


def test_a_run_of_documents_names_documents(folder: Path, tmp_path: Path) -> None:
    queries = tmp_path / "queries.tsv"
    queries.write_text("q1\tstair of lamp 7\n")
    from qontext.retrieve.directory import index_of

    index = index_of(folder / "made")
    for number, searched in enumerate(({"index": folder / "made"}, {"index": index / "bm25"})):
        out = tmp_path / f"run-{number}"
        api.retrieve(**searched, queries=queries, k=3, group="document", out=out)
        hits = [hit.passage for hit in read_run(out)["q1"]]
        assert sorted(hits) == ["a", "b", "c"]


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passages about lamps: 300 of one document, which match best, and one of each of ten others."""
    root = tmp_path_factory.mktemp("uneven")
    rows = [{"_id": f"b{n}", "text": "The lamp.", "doc_id": "long"} for n in range(300)]
    rows += [
        {"_id": f"s{n}", "text": f"The lamp {'is lit ' * n}at dusk.", "doc_id": f"d{n}"} for n in range(10)
    ]
    (root / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "queries.tsv").write_text("q1\tlamp\nq2\tdusk\n")
    api.split(root / "corpus.jsonl", keep=True, out=root / "made" / "index" / "passages")
    api.index(root / "made" / "index" / "passages", backend="bm25", out=root / "made" / "index" / "bm25")
    (root / "made" / "adapted.json").write_text(
        '{"format": 1, "index": "index", "system": "bm25", "weights": [0.5, 0.5], "read_tokens": 64}'
    )
    return root


def test_a_long_document_takes_no_place_of_others(uneven: Path, tmp_path: Path) -> None:
    made = uneven / "made"
    documents = [answer.document for answer in Searcher(made).search("lamp", k=5, group="document")]
    assert documents[0] == "long" and len({*documents}) == 5
    assert len(Searcher(made).search("lamp", k=50, group="document")) == 11, "all that there are"
    for number, index in enumerate((made, made / "index" / "bm25")):
        out = tmp_path / f"run-{number}"
        api.retrieve(index, queries=uneven / "queries.tsv", k=5, group="document", out=out)
        run = read_run(out)
        assert list(run) == ["q1", "q2"], "in the order of the queries"
        assert [hit.passage for hit in run["q1"]] == documents and len(run["q2"]) == 5


@pytest.mark.parametrize(
    ("question", "parsed"),
    [
        ("what is it?", [SubQuery("what is it?")]),
        ("note: what is it?", [SubQuery("note: what is it?")]),
        ("Words: a b\nwhy?", [SubQuery("a b", "words"), SubQuery("why?")]),
        ("meaning: a: b\n\nhypothetical: c", [SubQuery("a: b", "meaning"), SubQuery("c", "hypothetical")]),
        ("words:", [SubQuery("words:")]),
        ("a\nb", [SubQuery("a\nb")]),
        ("a\nall: b", [SubQuery("a"), SubQuery("b")]),
        ("all: b", [SubQuery("b")]),
    ],
)
def test_sub_queries_are_lines(question: str, parsed: list[SubQuery]) -> None:
    assert parse(question) == parsed


def test_sub_queries_of_the_whole_system_are_fused(finished: Any) -> None:  # noqa: F811
    searcher = Searcher(finished.out)
    one, other = "bell of Corrie 12", "repaired in 1850"
    runs = [searcher.run({"q": text}, k=100) for text in (one, other)]
    assert searcher.run({"q": joined(one, [other])}, k=100)["q"] == hybrid(runs, [0.5, 0.5], 100)["q"]


def test_sub_queries_by_vectors_need_vectors() -> None:
    with pytest.raises(QontextError, match="needs an index of vectors"):
        Searcher.build(TEXTS).search("meaning: flour")
