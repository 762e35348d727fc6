"""Expanded passages: with their queries, and still with their places."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from qontext import api
from qontext.data import records
from qontext.data.places import Place, find_passages
from qontext.frame.artifacts import open_artifact
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
    mill, place = after["guide/mill.html#0"]
    assert mill.text.endswith("\nwho grinds flour?\nwho grinds corn?") and mill.title == "The mill › Flour"
    assert place == before["guide/mill.html#0"][1]
    assert place == Place("guide/mill.html", ("Flour",), line=1, last_line=1, metadata=place.metadata)
    assert place.metadata["folder"] == "guide"


def test_conditions_hold_for_expanded_passages(expanded: Path) -> None:
    api.index(expanded, backend="bm25", out=expanded.parent / "index")
    (expanded.parent / "questions.tsv").write_text("q\tgrinds crosses\n")

    def matching() -> list[str]:
        run = expanded.parent / "run.trec"
        run.unlink(missing_ok=True)
        queries = expanded.parent / "questions.tsv"
        api.search(expanded.parent / "index", queries=queries, where=["folder=guide"], out=run)
        return [line.split()[2] for line in run.read_text().splitlines()]

    index = open_artifact(expanded.parent / "index")
    assert passages_of(index) == str(expanded.parent / "passages")
    assert matching() == ["guide/mill.html#0"]
    shutil.rmtree(expanded.parent / "passages")  # then those of the expanded ones
    assert passages_of(index) == str(expanded)
    assert matching() == ["guide/mill.html#0"]


def test_passages_without_places_are_expanded(expanded: Path) -> None:
    corpus = expanded.parent / "corpus.jsonl"
    corpus.write_text(json.dumps({"_id": "guide/mill.html#0", "text": "A mill."}) + "\n")
    artifact = api.expand(expanded.parent / "queries.parquet", passages=corpus, out=expanded.parent / "plain")
    assert find_passages(artifact.path, ["guide/mill.html#0"])["guide/mill.html#0"][1] == Place()
    assert not {*records.PLACES.names} & {
        *records.open_parquet(artifact.path / "part-00000.parquet").schema_arrow.names
    }
