"""Expanded passages: with their queries, and still with their places."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qontext import api
from qontext.baselines import expand
from qontext.data import records
from qontext.data.collection import read_passages
from qontext.data.places import Place, find_passages
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.retrieve.where import passages_of


@pytest.fixture
def expanded(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "guide").mkdir(parents=True)
    page = "<h1>The mill</h1><h2>Flour</h2><p>The mill grinds flour for bread and it has a wheel of oak."
    (tmp_path / "docs" / "guide" / "mill.html").write_text(page)
    (tmp_path / "docs" / "boat.txt").write_text("A boat crosses the river every day, with two people.\n")
    api.split(tmp_path / "docs", workers=1, out=tmp_path / "passages")
    rows = [
        {"passage": "guide/mill.html#0", "query": f"who grinds {what}?", "number": n}
        for n, what in enumerate(("flour", "corn"))
    ]
    records.write_table(tmp_path / "queries.parquet", records.table_of(rows, records.QUERIES))
    return api.expand(
        tmp_path / "queries.parquet", passages=tmp_path / "passages", out=tmp_path / "expanded"
    ).path


def test_places_survive(expanded: Path) -> None:
    ids = ["guide/mill.html#0", "boat.txt#0"]
    before, after = find_passages(expanded.parent / "passages", ids), find_passages(expanded, ids)
    assert after["boat.txt#0"] == before["boat.txt#0"]
    mill, place, _ = after["guide/mill.html#0"]
    assert mill.text.endswith("\nwho grinds flour?\nwho grinds corn?") and mill.title == "The mill › Flour"
    assert place == before["guide/mill.html#0"].place
    assert place == Place("guide/mill.html", ("Flour",), line=1, last_line=1, metadata=place.metadata)
    assert place.metadata["folder"] == "guide"


def test_conditions_hold_for_expanded_passages(expanded: Path) -> None:
    api.index(expanded, backend="bm25", out=expanded.parent / "index")
    (expanded.parent / "questions.tsv").write_text("q\tgrinds crosses\n")

    def matching() -> list[str]:
        run = expanded.parent / "run.trec"
        run.unlink(missing_ok=True)
        queries = expanded.parent / "questions.tsv"
        api.retrieve(expanded.parent / "index", queries=queries, where=["folder=guide"], out=run)
        return [line.split()[2] for line in run.read_text().splitlines()]

    index = open_artifact(expanded.parent / "index")
    assert passages_of(index) == str(expanded.parent / "passages")
    assert matching() == ["guide/mill.html#0"]


def test_passages_without_places_are_expanded(expanded: Path) -> None:
    corpus = expanded.parent / "corpus.jsonl"
    corpus.write_text(json.dumps({"_id": "guide/mill.html#0", "text": "A mill."}) + "\n")
    artifact = api.expand(expanded.parent / "queries.parquet", passages=corpus, out=expanded.parent / "plain")
    assert find_passages(artifact.path, ["guide/mill.html#0"])["guide/mill.html#0"][1] == Place()
    assert not {*records.PLACES.names} & {
        *records.open_parquet(artifact.path / "part-00000.parquet").schema_arrow.names
    }


def test_positions_go_on_in_the_next_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expand, "PART", 2)
    text = "\n\n".join(f"The mill number {n} grinds flour and corn for the bakers." for n in range(9))
    (tmp_path / "mills.txt").write_text(text)
    passages = api.split(tmp_path / "mills.txt", max_tokens=32, workers=1, out=tmp_path / "passages")
    queries = api.generate(passages, generator="keyphrase", per_passage=1, out=tmp_path / "queries")
    expanded = api.expand(queries, passages=passages, out=tmp_path / "expanded")
    places = records.read_table(expanded.path, records.PASSAGES, columns=["position"])
    found = [position for batch in places for position in batch["position"].to_pylist()]
    assert found == list(range(passages.summary["passages"])) and len(found) > 2


def test_parts_read_their_own_queries_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries stand in another order than passages, some of unknown passages, and several batches of them are read."""
    monkeypatch.setattr(expand, "PART", 2)
    monkeypatch.setattr(expand, "_BLOCK", 3)
    monkeypatch.setattr(expand, "_TOGETHER", 3)
    monkeypatch.setattr(records, "read_table", functools.partial(_one_by_one, records.read_table))
    names = [f"p{n}" for n in range(5)]
    corpus = "".join(json.dumps({"_id": name, "text": f"text {name}"}) + "\n" for name in names)
    (tmp_path / "corpus.jsonl").write_text(corpus)
    asked = [("p4", "a"), ("p0", "b"), ("px", "c"), ("p4", "d"), ("p1", "e"), ("p0", "f"), ("p4", "g")]
    rows = [{"passage": passage, "query": query, "number": 0} for passage, query in asked]
    records.write_table(tmp_path / "queries.parquet", records.table_of(rows, records.QUERIES))
    out = api.expand(tmp_path / "queries.parquet", passages=tmp_path / "corpus.jsonl", out=tmp_path / "out")
    assert [p.text for p in read_passages(out.path)] == [
        "text p0\nb\nf", "text p1\ne", "text p2", "text p3", "text p4\na\nd\ng",
    ]  # fmt: skip
    assert out.summary["queries_appended"] == 6 and not (out.path / expand.QUERIES).exists()


def _one_by_one(read: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    for batch in read(*arguments, **options):
        yield from (batch.slice(row, 1) for row in range(len(batch)))


@pytest.mark.parametrize(
    ("words", "appended"),
    [
        ("all", ["Who grinds flour's corn?", "mills of the people"]),
        ("seen", ["grinds flour's", "mills"]),
        ("new", ["corn", "people"]),
    ],
)
def test_some_words_are_appended(tmp_path: Path, words: str, appended: list[str]) -> None:
    """They are compared by their stems, and stop words are no words; the title counts, too."""
    rows = [
        {"_id": "m", "title": "A mill", "text": "It grinds flour."},
        {"_id": "b", "title": "", "text": "A boat."},
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [("m", "Who grinds flour's corn?"), ("m", "mills of the people"), ("b", "the")]
    queries = [{"passage": id, "query": text, "number": n} for n, (id, text) in enumerate(asked)]
    records.write_table(tmp_path / "queries.parquet", records.table_of(queries, records.QUERIES))
    out = api.expand(
        tmp_path / "queries.parquet", passages=tmp_path / "corpus.jsonl", words=words, out=tmp_path / "out"
    )
    table = records.read_part(out.path / "part-00000.parquet", records.PASSAGES)
    mill, boat = table["text"].to_pylist()
    assert mill.split("\n")[1:] == appended
    assert boat.split("\n")[1:] == (["the"] if words == "all" else [])
    assert [len(starts) - 1 for starts in table["sentences"].to_pylist()] == [2, int(words == "all")]
    assert out.summary["queries_appended"] == 2 + (words == "all")


def test_words_without_stems(tmp_path: Path) -> None:
    (tmp_path / "corpus.tsv").write_text("m\tThe mill.\n")
    row = {"passage": "m", "query": "the mills", "number": 0}
    records.write_table(tmp_path / "queries.parquet", records.table_of([row], records.QUERIES))
    settings = {"passages": tmp_path / "corpus.tsv", "words": "new"}
    with pytest.raises(QontextError, match="no passage was expanded"):
        api.expand(tmp_path / "queries.parquet", **settings, out=tmp_path / "out")
    out = api.expand(tmp_path / "queries.parquet", **settings, analyzer="plain", out=tmp_path / "out")
    assert records.read_part(out.path / "part-00000.parquet", records.PASSAGES)["text"].to_pylist() == [
        "The mill.\nmills"
    ]
