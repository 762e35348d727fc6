"""Conditions on metadata, and searches among the passages that meet them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.corpus import make

from qontext import api
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError
from qontext.retrieve.bm25 import Bm25
from qontext.retrieve.index.exact import ExactIndex
from qontext.retrieve.stored import open_vectors
from qontext.retrieve.where import mask, parse


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        ("folder=guide", "guide", True),
        ("folder=guide", "guide/intro", True),
        ("folder=guide/", "guide", True),
        ("folder=guide", "guides", False),
        ("folder!=guide", "guide/intro", False),
        ("folder=", "", True),
        ("folder=", "guide", False),
        ("lang=de", "de", True),
        ("lang=de|fr", "fr", True),
        ("lang=d*", "de", True),
        ("lang=[d]*", "de", False),
        ("lang=d?", "de", False),
        ("lang!=de", "fr", True),
        ("tags=a", ["b", "a"], True),
        ("tags!=a", ["b", "a"], False),
        ("year=2001", 2001, True),
        ("year=2001.0", 2001, True),
        ("year>2000", 2001, True),
        ("year>=2002", 2001, False),
        ("year < x", 2001, False),
        ("open=True", True, True),
        ("open=1", True, False),
        ("date>=2024", "2024-05-01", True),
        ("date<=2024", "2024-05-01", True),
        ("date>2024", "2024-05-01", False),
        ("date<2024-06", "2024-05-01", True),
        ("name=a=b", "a=b", True),
    ],
)
def test_conditions(condition: str, value: object, holds: bool) -> None:
    (parsed,) = parse([condition])
    assert parsed.holds(value) is holds


RECORDS = [
    {"_id": f"p{n}", "title": f"T{n % 3}", "text": f"text {n}", "lang": "de" if n % 2 else "en", "n": n}
    for n in range(40)
]


@pytest.fixture(params=["table", "collection"])
def passages(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same passages, as `split` writes them and as a BEIR folder."""
    (tmp_path / "beir").mkdir()
    path = tmp_path / "beir" / "corpus.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in [*RECORDS, {"_id": "x", "text": "none"}]))
    if request.param == "collection":
        return path.parent
    return api.split(path, out=tmp_path / "passages", keep=True).path


def rows_where(where: list[str], passages: Path) -> list[int]:
    ids = np.array(sorted(f"p{n}" for n in range(40)), dtype=object)
    return sorted(int(id[1:]) for id in ids[mask(where, ids, passages)])


def test_long_text_is_soon_known_to_be_no_condition() -> None:
    for text in ("a" + " " * 300_000 + "b", "a " * 150_000, " ! " * 100_000):
        with pytest.raises(QontextError, match="is not a condition"):
            parse([text])


def test_a_mask_has_the_passages_that_fulfil_all_conditions(passages: Path) -> None:
    assert rows_where(["lang=de", "n>=30"], passages) == [31, 33, 35, 37, 39]
    assert rows_where(["lang!=de", "n<4"], passages) == [0, 2]
    assert rows_where(["title=T1", "n<8"], passages) == [1, 4, 7]
    assert rows_where(["title=none", "n<8"], passages) == []


def test_a_field_that_no_passage_has_is_an_error_that_names_those_there_are(passages: Path) -> None:
    with pytest.raises(QontextError, match=r"no passage has a field 'language'.*lang, n"):
        rows_where(["language=de"], passages)


def test_a_passage_is_on_all_pages_that_its_text_is_on(tmp_path: Path) -> None:
    pytest.importorskip("reportlab")
    pytest.importorskip("pypdfium2")
    (tmp_path / "docs").mkdir()
    pages = [["The first page says that the mill"], ["grinds flour for bread, on the second."]]
    make.pdf(tmp_path / "docs" / "r.pdf", pages)
    (tmp_path / "docs" / "plain.txt").write_text("No page.")
    passages = api.split(tmp_path / "docs", out=tmp_path / "out").path
    ids = np.array(["plain.txt#0", "r.pdf#0"], dtype=object)
    for condition, on_page, without in (
        ("page=1", True, False),
        ("page=2", True, False),
        ("page=3", False, False),
        ("page>1", True, False),
        ("page>2", False, False),
        ("page!=2", False, True),
        ("page!=3", True, True),
    ):
        assert mask([condition], ids, passages).tolist() == [without, on_page], condition


def test_bm25_among_some_passages_is_that_among_all_without_the_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = ["river", "stone", "bridge", "water", "boat"]
    texts = [" ".join(rng.choice(words, 4)) for _ in range(300)]
    ids = [f"p{n:03d}" for n in range(300)]
    index = Bm25.build(texts, ids=ids)
    rows = rng.random(300) < 0.1
    queries = {"q": "stone bridge", "r": "boat", "s": "nothing"}
    whole, some = index.search(queries, 300), index.search(queries, 12, rows)
    chosen = {id for id, is_chosen in zip(ids, rows) if is_chosen}
    for query in ("q", "r"):
        assert some[query] == [hit for hit in whole[query] if hit.passage in chosen][:12] != []
    assert "s" not in some
    index.save(tmp_path)
    many = {f"{query}{n}": text for n in range(40) for query, text in queries.items()}
    saved = Bm25.load(tmp_path).search(many, 12, rows)
    assert [hit.passage for hit in saved["q39"]] == [hit.passage for hit in some["q"]]


def test_coarse_scoring_among_some_passages(make_vectors: Callable[..., Artifact]) -> None:
    rng = np.random.default_rng(1)
    parts = [
        ([f"p{n * 500 + i:04d}" for i in range(500)], rng.standard_normal((500, 8), np.float32))
        for n in range(2)
    ]
    vectors = open_vectors(make_vectors("vectors", parts).path)
    rows = rng.random(1000) < 0.3
    queries = rng.standard_normal((7, 8), np.float32)
    exact = ExactIndex(vectors).search(queries, 20, rows)
    coarse = ExactIndex(vectors, scoring=torch.bfloat16).search(queries, 20, rows)
    assert (exact[0] == coarse[0]).all() and np.allclose(exact[1], coarse[1], atol=1e-5)
