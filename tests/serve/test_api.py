"""The HTTP API as clients see it: search, embeddings, reranking, models, health and metrics."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.serve.conftest import Running, Serve, World

from qontext import api
from qontext.data.passage import Passage
from qontext.models.retriever import Retriever
from qontext.retrieve.index import Array
from qontext.retrieve.searcher import Searcher
from qontext.retrieve.where import mask
from qontext.serve.batching import LARGEST
from qontext.serve.pages import highlight
from qontext.serve.passages import Passages, conditions
from qontext.serve.systems import Opener, ServedSystem

QUESTION = "Which lamp was repaired by masons after a storm?"


def search(site: Running, **body: Any) -> dict[str, Any]:
    answer = site.http.post("/v1/search", json=body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_search_returns_what_the_searcher_returns(
    site: Running, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QONTEXT_AUTO_PRECISION", "fp32")
    hits = search(site, query=QUESTION, k=7)["results"][0]["hits"]
    expected = Searcher(world / "mine", device="cpu").search(QUESTION, 7)
    assert [hit["passage"] for hit in hits] == [answer.passage for answer in expected]
    assert [hit["text"] for hit in hits] == [answer.text for answer in expected]
    assert [hit["rank"] for hit in hits] == [1, 2, 3, 4, 5, 6, 7]
    assert [hit["score"] for hit in hits] == pytest.approx([a.score for a in expected], abs=1e-5)
    assert {hit["document"] for hit in hits} == {answer.document for answer in expected}


def test_several_queries_are_answered_in_order(site: Running) -> None:
    both = search(site, query=[QUESTION, "engine"], k=3)["results"]
    assert [result["query"] for result in both] == [QUESTION, "engine"]
    alone = search(site, query="engine", k=3)["results"][0]
    assert [hit["passage"] for hit in both[1]["hits"]] == [hit["passage"] for hit in alone["hits"]]


def test_every_system_can_be_named(site: Running) -> None:
    names = [m["id"] for m in site.http.get("/v1/models").json()["data"] if "search" in m["capabilities"]]
    assert names == [
        "mine", "mine/bm25", "mine/dense", "vectors", "bm25", "mine/reranked", "vectors/reranked", "bm25/reranked",
    ]  # fmt: skip
    first = {name: search(site, query="boat", system=name)["results"][0]["hits"] for name in names}
    assert all(first.values())
    assert [h["passage"] for h in first["vectors"]] == [h["passage"] for h in first["mine/dense"]]
    assert [h["passage"] for h in first["bm25"]] == [h["passage"] for h in first["mine/bm25"]]


@pytest.mark.parametrize("system", ["mine", "mine/bm25", "vectors"])
def test_filters_return_the_best_of_what_they_accept(site: Running, system: str) -> None:
    everything = search(site, query="storm", k=1000, system=system)["results"][0]["hits"]
    inside = [h["passage"] for h in everything if h["document"].startswith("north/islands/")]
    hits = search(site, query="storm", k=5, system=system, folder="north/islands")["results"][0]["hits"]
    if system == "mine":  # z-scores depend on the candidates
        assert len(hits) == 5 and all(h["document"].startswith("north/islands/") for h in hits)
    else:
        assert [h["passage"] for h in hits] == inside[:5]
    document = everything[-1]["document"]
    only = search(site, query="storm", k=50, system=system, document=document)["results"][0]["hits"]
    assert {hit["document"] for hit in only} == {document}
    assert search(site, query="storm", system=system, folder="nort")["results"][0]["hits"] == []


def test_a_folder_is_chosen_by_its_name_as_it_is(tmp_path: Path) -> None:
    folders = ["guide", "other", "guide|other", "gui*", "gui*/deep"]
    rows = [{"_id": f"d{n}", "text": f"A boat {n}.", "folder": name} for n, name in enumerate(folders)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    split = api.split(tmp_path / "docs.jsonl", workers=1, out=tmp_path / "passages")
    for name, numbers in (
        ("guide", [0]),
        ("guide|other", [2]),
        ("gui*/", [3, 4]),
        ("gui*/deep", [4]),
        ("gui", []),
    ):
        ids = np.array([f"d{n}#0" for n in range(len(rows))], object)
        assert mask(conditions(folder=name), ids, split.path).nonzero()[0].tolist() == numbers, name


@pytest.mark.parametrize("system", ["mine", "bm25", "vectors", "bm25/reranked"])
def test_conditions_on_metadata(site: Running, system: str) -> None:
    hits = search(site, query="storm", k=20, system=system, where=["year>=2020", "year!=2023"])["results"][0][
        "hits"
    ]
    assert {hit["metadata"]["year"] for hit in hits} == {2020, 2021, 2022}
    wrong = site.http.post("/v1/search", json={"query": "storm", "where": ["color=red"]})
    assert wrong.status_code == 400 and "no passage has a field 'color'" in wrong.json()["error"]["message"]
    assert site.http.get("/", params={"q": "storm", "where": "color=red"}).status_code == 400
    assert 'value="year&gt;=2020"' in site.http.get("/", params={"q": "storm", "where": "year>=2020"}).text


def test_passages_of_any_parquet_file_and_with_several_folders_are_served(tmp_path: Path) -> None:
    columns = {"id": ["a", "b"], "doc": ["a", "b"], "title": ["", ""], "text": ["one", "two"]}
    pq.write_table(pa.table(columns), tmp_path / "plain.parquet")
    plain = Passages.read(str(tmp_path / "plain.parquet"))
    assert {id: one.passage.text for id, one in plain.find("ab").items()} == {"a": "one", "b": "two"}
    assert plain.folders == []
    metadata = ['{"folder": ["x", "y"]}', '{"folder": "z"}']
    pq.write_table(pa.table({**columns, "metadata": metadata}), tmp_path / "folders.parquet")
    assert Passages.read(str(tmp_path / "folders.parquet")).folders == ["x", "y", "z"]


def test_vectors_are_those_of_the_encoder(site: Running, world: World) -> None:
    texts = ["The lamp was repaired.", "A storm.", "a " * 300]
    body = {"model": "mine", "input": texts}
    answer = site.http.post("/v1/embeddings", json=body).json()
    retriever = Retriever(str(world / "mine" / "model"), device="cpu", precision="fp32", max_length=80)
    expected = retriever.encode(texts, "passage")
    got = np.array([row["embedding"] for row in answer["data"]], np.float32)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    coded = site.http.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json()
    for row, vector in zip(coded["data"], got):
        np.testing.assert_array_equal(np.frombuffer(base64.b64decode(row["embedding"]), "<f4"), vector)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, retriever.tokenize(texts, "passage")))
    short = site.http.post("/v1/embeddings", json={**body, "dimensions": 4}).json()["data"]
    for row, vector in zip(short, got):
        np.testing.assert_allclose(row["embedding"], vector[:4] / np.linalg.norm(vector[:4]), atol=1e-5)


def test_queries_and_passages_are_told_apart(serve: Serve, world: World) -> None:
    """An encoder with prompts encodes the two kinds differently."""
    import json

    settings = world / "mine" / "model" / "config_sentence_transformers.json"
    before = settings.read_text()
    settings.write_text(
        json.dumps({**json.loads(before), "prompts": {"query": "query: ", "document": "text: "}})
    )
    try:
        http = serve("mine").http
    finally:
        settings.write_text(before)

    def vector(**body: Any) -> list[float]:
        answer = http.post("/v1/embeddings", json={"input": "A storm.", **body}).json()
        embedding: list[float] = answer["data"][0]["embedding"]
        return embedding

    query, passage = vector(model="mine-query"), vector(model="mine-passage")
    assert query != passage
    assert vector(model="mine") == passage
    assert vector(model="mine", input_type="query") == query
    assert vector(model="mine", input_type="search_document") == passage
    clash = http.post("/v1/embeddings", json={"model": "mine-query", "input": "a", "input_type": "passage"})
    assert clash.status_code == 400


def test_reranking_puts_texts_in_order(site: Running) -> None:
    texts = ["The boat sank.", "A lamp.", {"text": "The lamp was repaired by masons after a storm."}]
    body = {"query": "boat", "documents": texts, "return_documents": True}
    answer = site.http.post("/v1/rerank", json=body).json()
    assert answer["model"] == "reranker"
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True) and all(0 < score < 1 for score in scores)
    assert sorted(result["index"] for result in answer["results"]) == [0, 1, 2]
    plain = ["The boat sank.", "A lamp.", "The lamp was repaired by masons after a storm."]
    assert all(result["document"]["text"] == plain[result["index"]] for result in answer["results"])
    top = site.http.post("/v1/rerank", json={**body, "top_n": 1}).json()["results"]
    assert top == answer["results"][:1]
    dense = site.http.post("/v1/rerank", json={**body, "model": "mine"}).json()
    assert dense["model"] == "mine" and len(dense["results"]) == 3


def test_health_models_and_metrics(site: Running) -> None:
    assert site.http.get("/healthz").json() == {"status": "ok"}
    assert site.http.get("/v1/models/mine%2Fbm25").json()["id"] == "mine/bm25"
    search(site, query="boat")
    text = site.http.get("/metrics").text
    assert 'qontext_requests_total{method="POST",route="/v1/search",status="200"}' in text
    assert 'qontext_request_seconds_bucket{le="+Inf",route="/v1/search"}' in text
    for line in text.splitlines():
        assert line.startswith("# ") or (line.rpartition(" ")[2] and float(line.rpartition(" ")[2]) >= 0), (
            line
        )


BAD: dict[str, tuple[str, Any, int]] = {
    "empty query": ("/v1/search", {"query": ""}, 422),
    "blank query": ("/v1/search", {"query": " \n"}, 422),
    "no query": ("/v1/search", {}, 422),
    "no queries": ("/v1/search", {"query": []}, 422),
    "a number": ("/v1/search", {"query": 5}, 422),
    "too many queries": ("/v1/search", {"query": ["a"] * 65}, 422),
    "long query": ("/v1/search", {"query": "a" * 1_000_000}, 422),
    "k of zero": ("/v1/search", {"query": "a", "k": 0}, 422),
    "huge k": ("/v1/search", {"query": "a", "k": 10**9}, 422),
    "many results": ("/v1/search", {"query": ["a"] * 11, "k": 1_000}, 422),
    "k of text": ("/v1/search", {"query": "a", "k": "5"}, 422),
    "unknown system": ("/v1/search", {"query": "a", "system": "nothing"}, 404),
    "system of a path": ("/v1/search", {"query": "a", "system": "../../etc/passwd"}, 404),
    "unknown model": ("/v1/embeddings", {"input": "a", "model": "gpt"}, 404),
    "suffixes of suffixes": ("/v1/embeddings", {"input": "a", "model": "mine-query-query"}, 404),
    "token array": ("/v1/embeddings", {"input": [1, 2], "model": "mine"}, 422),
    "token arrays": ("/v1/embeddings", {"input": [[1, 2]], "model": "mine"}, 422),
    "empty text": ("/v1/embeddings", {"input": "", "model": "mine"}, 422),
    "many dimensions": ("/v1/embeddings", {"input": "a", "model": "mine", "dimensions": 17}, 400),
    "no dimensions": ("/v1/embeddings", {"input": "a", "model": "mine", "dimensions": 0}, 422),
    "format": ("/v1/embeddings", {"input": "a", "model": "mine", "encoding_format": "int8"}, 422),
    "no documents": ("/v1/rerank", {"query": "a", "documents": []}, 422),
    "empty document": ("/v1/rerank", {"query": "a", "documents": [""]}, 422),
    "reranker": ("/v1/rerank", {"query": "a", "documents": ["b"], "model": "nothing"}, 404),
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/search", {"query": ["a", " "]}, "query.1: is empty"),
        ("/v1/search", {"query": ["a", 5]}, "query.1: input should be a valid string"),
        ("/v1/search", {"query": ""}, "query: is empty"),
        ("/v1/search", {"query": []}, "query: list should have at least 1 item after validation, not 0"),
        ("/v1/search", {"query": "a", "k": 0}, "k: input should be greater than or equal to 1"),
        ("/v1/search", {"query": ["a"] * 64, "k": 500}, "the request: asks for more than 10,000 passages"),
        ("/v1/rerank", {"query": "a", "documents": ["a", {}]}, "documents.1.text: field required"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(site: Running, path: str, body: Any, message: str) -> None:
    assert site.http.post(path, json=body).json()["error"]["message"].startswith(message)


def test_a_large_request_without_a_length_is_refused(site: Running) -> None:
    def stream() -> Any:
        for _ in range(100):
            yield b"a" * 65_536

    try:
        answer = site.http.post("/v1/search", content=stream())
    except httpx.WriteError:  # it was refused while it was being sent
        return
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("analyzer", "query", "text", "marked"),
    [
        ("english", "mills", "The mill's wheel, a mill.", ["mill's", "mill"]),
        ("cjk", "図書館", "昔の図書館で本を読む", ["図書館"]),
        ("code", "file name", "call getFileName or file_name", ["File", "Name", "file", "name"]),
    ],
)
def test_words_are_marked_as_the_analyzer_reads_them(
    analyzer: str, query: str, text: str, marked: list[str]
) -> None:
    stretches = highlight(text, query, analyzer)
    assert [stretch.text for stretch in stretches if stretch.is_marked] == marked
    assert "".join(stretch.text for stretch in stretches) == text


def test_what_found_a_passage_is_that_of_the_filtered_search(site: Running) -> None:
    body = {"query": QUESTION, "k": 3, "folder": "north/islands", "explain": True}
    hits = search(site, **body)["results"][0]["hits"]
    assert [hit["evidence"]["parts"][-1]["rank"] for hit in hits] == [1, 2, 3]


def test_an_explanation_is_computed_in_parts(site: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between which other requests have their turn."""
    sizes, explain = [], ServedSystem.evidence

    def counted(system: Any, question: str, hits: Any, only: Any) -> Any:
        sizes.append(len(hits))
        return explain(system, question, hits, only)

    monkeypatch.setattr(ServedSystem, "evidence", counted)
    hits = search(site, query=["storm", "boat"], k=70, explain=True)["results"][1]["hits"]
    assert sizes == [LARGEST, 6, LARGEST, 6]
    assert [hit["evidence"]["parts"][-1]["rank"] for hit in hits] == list(range(1, 71))


def test_hits_below_the_lowest_score_are_left_out(site: Running) -> None:
    hits = search(site, query="storm", k=10)["results"][0]["hits"]
    least = hits[4]["score"]
    kept = search(site, query="storm", k=10, min_score=least)["results"][0]["hits"]
    assert kept == [hit for hit in hits if hit["score"] >= least]


def test_pages_keep_lines_of_code_and_tell_equal_titles_apart(serve: Serve, tmp_path: Path) -> None:
    code = "def ring(bell):\n    for _ in range(3):\n        bell.ring()\n    return bell"
    documents = [
        {"_id": "code", "title": "Bells", "text": code},
        {"_id": "prose", "title": "Bells", "text": "The bell of the tower\nrings at noon."},
        {"_id": "other", "title": "Towers", "text": "A tower has a bell."},
    ]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    passages = api.split(tmp_path / "docs.jsonl", workers=1, out=tmp_path / "passages")
    api.index(passages, backend="bm25", out=tmp_path / "words")
    http = serve(str(tmp_path / "words")).http
    assert f'<p class="snippet">{code}</p>' in http.get("/document?id=code").text
    assert (
        '<p class="snippet">The bell of the tower rings at noon.</p>' in http.get("/document?id=prose").text
    )
    assert re.search(
        r"^\.snippet \{ white-space: pre-wrap; \}", http.get("/static/style.css").text, re.MULTILINE
    )
    shown = re.findall(r'<p class="facts"><span>([^<]+)</span>', http.get("/?q=bell").text)
    assert sorted(shown) == ["code#0", "other", "prose#0"]


class Backwards:
    """A reranker that prefers passages of long documents least."""

    def score(self, pairs: list[tuple[str, Passage]], advance: Any = None) -> Array:
        return np.array([-float(passage.doc == "long") for _, passage in pairs])


def test_a_long_document_takes_no_place_of_others(tmp_path: Path) -> None:
    """With a reranker, too, which reads the best passages alone."""
    rows = [{"_id": f"b{n}", "text": "The lamp.", "doc_id": "long"} for n in range(300)]
    rows += [
        {"_id": f"s{n}", "text": f"The lamp {'is lit ' * n}at dusk.", "doc_id": f"d{n}"} for n in range(10)
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    passages = api.split(tmp_path / "corpus.jsonl", keep=True, workers=1, out=tmp_path / "passages")
    index = api.index(passages, backend="bm25", out=tmp_path / "words")
    (system,) = Opener("cpu", "fp32").open("words", str(index.path))
    for one in (system, system.reranked("words/reranked", ("backwards", Backwards()))):
        few, none, every = (
            [answer.document for answer in one.search(text, k, group="document")]
            for text, k in (("lamp", 5), ("boat", 5), ("lamp", 50))
        )
        assert len(few) == len({*few}) == 5 and none == [] and len(every) == len({*every}) == 11
        assert few == every[:5] and few[0] == "long"
