"""A tree that was moved, or is read from elsewhere, finds what it was made from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from qontext import api
from qontext.frame import artifacts
from qontext.frame.errors import QontextError
from qontext.frame.inputs import places, relative
from qontext.retrieve.searcher import Searcher

ASKED: dict[str, Any] = {"split": "test", "k": 3, "precision": "fp32", "device": "cpu"}


@pytest.mark.parametrize("what", ["vectors", "hnsw"])
def test_vectors_and_indexes_find_their_encoder_after_a_move(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    before = api.retrieve(what, data="data", out="before", **ASKED)
    expected = (before.path / "run.trec").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    moved = copy.rename(tmp_path / "elsewhere" / "renamed")
    decoy = tmp_path / "encoder"  # where the path that was given leads to now
    decoy.mkdir()
    (decoy / "config.json").write_text("{}")
    run = api.retrieve(moved / what, data=moved / "data", out=tmp_path / "after", **ASKED)
    assert (run.path / "run.trec").read_text() == expected


def test_a_chain_is_made_in_one_place_and_searched_in_another(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is made from vectors that were moved already, and these are gone when it is searched."""
    monkeypatch.chdir(tmp_path)
    first = copy.rename(tmp_path / "first")
    api.index("first/vectors", backend="faiss-hnsw", out="first/index")
    shutil.rmtree(first / "vectors")
    second = first.rename(tmp_path / "second")
    monkeypatch.chdir(second / "data")
    assert api.retrieve("../index", data=".", out="../found", **ASKED).summary["queries"] == 4


def test_an_artifact_that_was_moved_alone_finds_an_absolute_path(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"precision": "fp32", "device": "cpu"}
    api.encode("data", encoder=copy / "encoder", out="absolute", **settings)
    monkeypatch.chdir(tmp_path)
    (copy / "absolute").rename(tmp_path / "alone")
    assert api.retrieve("alone", data=copy / "data", out="found", **ASKED).summary["queries"] == 4


def test_an_encoder_that_is_gone_or_changed_is_told(copy: Path, tmp_path: Path) -> None:
    notes = copy / "encoder" / "notes.txt"
    notes.write_text("changed")
    with pytest.raises(
        QontextError,
        match=r"encoder: the encoder of the passages has changed since vectors was computed from it",
    ):
        api.retrieve("vectors", data="data", out="found", **ASKED)
    notes.unlink()
    (copy / "encoder").rename(tmp_path / "aside")
    with pytest.raises(QontextError, match=r"is not found at .*work/encoder nor at encoder\. Name it"):
        api.retrieve("vectors", data="data", out="found", **ASKED)
    assert (
        api.retrieve("vectors", data="data", encoder=tmp_path / "aside", out="found", **ASKED).summary[
            "queries"
        ]
        == 4
    )


def test_where_an_input_is_does_not_decide_what_is_made(copy: Path) -> None:
    """A moved tree resumes: the same command in it is done already."""
    artifact = artifacts.open_artifact("vectors")
    copy.rename(copy.with_name("renamed"))
    again = api.encode(
        copy.with_name("renamed") / "data",
        encoder=copy.with_name("renamed") / "encoder",
        precision="fp32",
        device="cpu",
        out=copy.with_name("renamed") / "vectors",
    )
    assert again.meta == artifact.meta


def test_links_on_the_way_are_followed_and_the_input_may_be_one(copy: Path, tmp_path: Path) -> None:
    (copy / "link").symlink_to("encoder")
    (tmp_path / "door").symlink_to(copy)
    entry = {"path": "link", "digest": "d", **relative("link", tmp_path / "door" / "vectors")}
    assert entry["beside"] == "../link"
    assert places(entry, copy / "vectors")[0] == copy / "link"
    assert relative("nobody/some-model", copy) == {} == relative("x" * 5000, copy)


# What adapt makes


@pytest.fixture
def adapted(copy: Path) -> Path:
    """The result of `adapt` in small: a model, an index of all passages, and which system measured best."""
    root = copy / "adapted"
    shutil.copytree("encoder", root / "model")
    api.split("data", keep=True, workers=1, out=root / "index" / "passages")
    api.encode("data", encoder=root / "model", precision="fp32", device="cpu", out=root / "index" / "vectors")
    api.index(root / "index" / "passages", backend="bm25", out=root / "index" / "bm25")
    about = {
        "format": 1,
        "index": "index",
        "system": "hybrid",
        "encoder": "adapted",
        "weights": [0.7, 0.3],
        "read_tokens": 32,
    }
    (root / "adapted.json").write_text(json.dumps(about))
    return root


def test_what_adapt_made_can_be_moved(adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Searcher(adapted).search("river stone", 3)
    monkeypatch.chdir("/")
    moved = adapted.rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "work")
    assert Searcher(moved).search("river stone", 3) == expected
    assert api.search(moved, question="river stone", k=3) == expected
    data = tmp_path / "queries.tsv"
    data.write_text("q\triver stone\n")
    run = api.retrieve(moved / "index" / "vectors", queries=data, out=tmp_path / "found", precision="fp32")
    assert run.summary["queries"] == 1
