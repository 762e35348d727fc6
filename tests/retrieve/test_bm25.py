from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import bm25s
import numpy as np
import pytest
from bm25s.tokenization import Tokenized

from qontext.data.collection import load_collection
from qontext.evaluation.measures import measure, parse
from qontext.frame.errors import QontextError
from qontext.retrieve import bm25
from qontext.retrieve.analyzer import LANGUAGES, Analyzer, spans_of, words_of
from qontext.retrieve.bm25 import Bm25
from qontext.retrieve.index import postings


def test_the_score_is_the_formula() -> None:
    """Three texts of 1, 2 and 3 words; 'stone' is in two of them, once each."""
    index = Bm25.build(["stone", "stone river", "boat mill bread"], ["a", "b", "c"], k1=0.9, b=0.4)
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    (first, second) = index.search({"q": "the stone"}, 10)["q"]
    assert first.passage == "a" and first.score == pytest.approx(idf / (1 + 0.9 * (0.6 + 0.4 * 1 / 2)))
    assert second.passage == "b" and second.score == pytest.approx(idf / (1 + 0.9 * (0.6 + 0.4 * 2 / 2)))


@pytest.mark.parametrize("block", [postings._BLOCK, 50])
def test_the_index_is_bm25s_own_in_one_block_and_in_many(
    beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(postings, "_BLOCK", block)
    passages = list(load_collection(beir).passages())
    Bm25.write(tmp_path, passages, k1=1.2, b=0.7, analyzer="lucene")
    Bm25.build(passages, k1=1.2, b=0.7, analyzer="lucene").save(tmp_path / "saved")
    for file in (tmp_path / "saved").iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
    numbers: dict[str, int] = {}
    terms = Analyzer("lucene", numbers, grow=True)
    theirs = bm25s.BM25(k1=1.2, b=0.7, method="lucene", dtype="float32", backend="numpy")
    theirs.index(Tokenized([terms(p.content) for p in passages], numbers), show_progress=False)
    ours = bm25s.BM25.load(tmp_path)
    assert ours.vocab_dict == theirs.vocab_dict and (ours.k1, ours.b) == (1.2, 0.7)
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(ours.scores[name], theirs.scores[name])


def test_ties_go_by_id_also_at_the_cut() -> None:
    ids = [f"p{i:02d}" for i in np.random.default_rng(0).permutation(40)]
    index = Bm25.build(["stone boat"] * 40, ids)
    assert [hit.passage for hit in index.search({"q": "stone"}, 5)["q"]] == [f"p{i:02d}" for i in range(5)]


@pytest.mark.parametrize("numba", [False, True])
def test_a_loaded_index_gives_the_same_run(
    beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numba: bool
) -> None:
    if numba:
        pytest.importorskip("numba", reason="numba is not installed")
        monkeypatch.setattr(bm25, "_NUMBA_PAYS_FROM", 0)
    collection = load_collection(beir)
    index = Bm25.build(collection.passages())
    index.save(tmp_path / "index")
    assert {p.suffix for p in (tmp_path / "index").iterdir()} == {".npy", ".json", ".parquet"}
    queries = {**collection.queries(), "nothing": "the of and"}
    expected = index.search(queries, 20)
    assert "nothing" not in expected and expected["q3"][0].passage == "p15"
    assert dict(Bm25.load(tmp_path / "index").search(queries, 20)) == dict(expected)


def test_it_reaches_the_known_quality_on_a_real_set(shared_data: Callable[[str], Path]) -> None:
    collection = load_collection(shared_data("cranfield"))
    run = Bm25.build(collection.passages()).search(collection.queries("test"), 100)
    means = measure(run, collection.qrels("test"), parse("nDCG@10 R@100")).means
    assert means["nDCG@10"] > 0.48 and means["R@100"] > 0.73


def test_bad_input_is_told(tmp_path: Path) -> None:
    with pytest.raises(QontextError, match="'a' occurs twice"):
        Bm25.build(["x y", "z w"], ["a", "a"])
    with pytest.raises(QontextError, match="no passage contains a word"):
        Bm25.build(["", "the"], ["a", "b"])
    with pytest.raises(QontextError, match=r"params.index.json: the file is missing"):
        Bm25.load(tmp_path)


def test_analyzers_differ_in_stems_and_stop_words() -> None:
    def terms(analyzer: str, text: str) -> list[str]:
        numbers: dict[str, int] = {}
        stems = Analyzer(analyzer, numbers, grow=True)(text)
        return [list(numbers)[number] for number in stems]

    text = "The miller\u2019s rivers were running above his cities"
    assert terms("plain", text) == text.lower().split()
    assert terms("lucene", text) == ["miller", "river", "were", "run", "abov", "hi", "citi"]
    assert terms("english", text) == ["miller", "river", "run", "citi"]
    assert terms("german", "Häuser Hauses Haus") == ["haus"] * 3
    # A name and its parts; digits do not end one, and words in capitals are whole.
    text = "The getFileName of XMLParser2 __init__ utf8 HTTP don't"
    parts = ["getfilenam", "file", "name", "xmlparser2", "xml", "parser2", "__init__", "init", "utf8", "http"]
    assert [term for term in terms("code", text) if term != "get"] == parts
    assert terms("english", text) == ["getfilenam", "xmlparser2", "__init__", "utf8", "http"]
    # Pairs of neighbors of scripts without spaces; a single character, and words of other scripts, are whole.
    assert terms("cjk", "黑豹队 NFL's 24分, 水。") == ["黑豹", "豹队", "nfl's", "24", "分", "水"]
    assert terms("cjk", "ドアを 한국어 ประตู") == ["ドア", "アを", "한국", "국어", "ปร", "ระ", "ะต", "ตู"]


def test_an_index_keeps_its_analyzer(tmp_path: Path) -> None:
    Bm25.build(["die Häuser am Fluss", "ein Boot"], ["a", "b"], analyzer="german").save(tmp_path / "index")
    (hit,) = Bm25.load(tmp_path / "index").search({"q": "Haus"}, 10)["q"]
    assert hit.passage == "a"


def test_names_in_code_are_found_by_their_parts(tmp_path: Path) -> None:
    passages = ["def getFileName(path): ...", "def read_all(path): ..."]
    query = {"q": "the name of a file"}
    assert not Bm25.build(passages, ["a", "b"]).search(query, 10), "names are words"
    Bm25.build(passages, ["a", "b"], analyzer="code").save(tmp_path / "index")
    found = Bm25.load(tmp_path / "index")
    assert [hit.passage for hit in found.search(query, 10)["q"]] == ["a"]
    assert [hit.passage for hit in found.search({"q": "getFileName"}, 10)["q"]] == ["a"]


def test_passages_without_spaces_are_found_by_their_pairs_of_characters(tmp_path: Path) -> None:
    passages = ["黑豹队的防守只丢了308分，在联赛中排名第六。", "水轮磨坊在河边，面包师在那里磨面粉。"]
    query = {"q": "谁在河边的磨坊磨面粉？"}
    assert not Bm25.build(passages, ["a", "b"]).search(query, 10), "runs of characters are words"
    Bm25.build(passages, ["a", "b"], analyzer=LANGUAGES["zh"]).save(tmp_path / "index")
    assert Bm25.load(tmp_path / "index").search(query, 10)["q"][0].passage == "b"


@pytest.mark.parametrize("analyzer", ["english", "code", "cjk"])
def test_words_are_where_they_are_found(analyzer: str) -> None:
    text = "getFileName __init__ of XMLParser2's map, 図書館で a 本 ok_"
    assert [text[begin:end] for begin, end in spans_of(analyzer)(text)] == words_of(analyzer)(text)


def test_marks_belong_to_the_words_that_they_are_on() -> None:
    assert words_of("hindi")("पासवर्ड रोटी, l'e\u0301te\u0301 — 1️⃣") == [
        "पासवर्ड",
        "रोटी",
        "l'e\u0301te\u0301",
        "1",
    ]
    index = Bm25.build(["रेत के टीले और पवन", "रोटी गेहूँ से बनती है"], ["sand", "bread"], analyzer=LANGUAGES["hi"])
    assert [hit.passage for hit in index.search({"q": "रोटी"}, 10)["q"]] == ["bread"]


@pytest.mark.parametrize(
    ("analyzer", "written", "asked"),
    [
        ("german", "Der Schlu\u0308ssel liegt hier.", "schlüssel"),
        ("cjk", "東京タワーは\u30af\u3099リーンです。", "グリーン"),
        ("turkish", "İstanbul büyük", "istanbul"),
    ],
)
def test_composed_and_decomposed_characters_are_the_same(analyzer: str, written: str, asked: str) -> None:
    index = Bm25.build(["x y z", written], ["other", "it"], analyzer=analyzer)
    assert [hit.passage for hit in index.search({"q": asked}, 10)["q"]] == ["it"]


def test_an_unknown_analyzer_is_refused() -> None:
    with pytest.raises(QontextError, match="unknown analyzer 'klingon'"):
        Bm25.build(["x"], ["a"], analyzer="klingon")


def test_lucenes_analyzer_reaches_the_published_order_of_quality(shared_data: Callable[[str], Path]) -> None:
    collection = load_collection(shared_data("cranfield"))
    index = Bm25.build(collection.passages(), analyzer="lucene")
    run = index.search(collection.queries("test"), 100)
    assert measure(run, collection.qrels("test"), parse("nDCG@10")).means["nDCG@10"] > 0.48
