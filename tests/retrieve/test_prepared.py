"""A search in documents that nobody prepared: words at once, vectors later, and what changed since."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from qontext import api
from qontext.adapt import follow
from qontext.frame import locks
from qontext.retrieve.ask import prepared
from qontext.retrieve.directory import LOCK, read_adapted


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of documents; vectors are not computed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(prepared, "default_encoder", lambda: "nobody/encoder")
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "mill.md").write_text("# The mill\n\nThe mill grinds flour.\n")
    return folder


def test_a_folder_is_searched_as_it_is(docs: Path, tmp_path: Path) -> None:
    before = sorted(docs.rglob("*"))
    answer, *others = api.search(docs, "Who grinds flour?")
    assert (answer.document, others) == ("mill.md", [])
    assert sorted(docs.rglob("*")) == before, "the index is in the user's cache"
    assert prepared.cache_of(str(docs)).is_relative_to(tmp_path / "cache")


def test_the_next_search_finds_what_changed(docs: Path) -> None:
    assert len(api.search(docs, "flour")) == 1
    (docs / "mill.md").write_text("The mill saws wood.\n")
    (docs / "oven.txt").write_text("The oven bakes flour into bread.\n")
    assert [answer.document for answer in api.search(docs, "flour")] == ["oven.txt"]


def test_an_index_that_is_being_updated_answers_as_it_was(docs: Path) -> None:
    api.search(docs, "flour")
    (docs / "oven.txt").write_text("The oven bakes bread.\n")
    with locks.lock(prepared.cache_of(str(docs)), LOCK):
        assert list(api.search(docs, "bread")) == []
    assert [answer.document for answer in api.search(docs, "bread")] == ["oven.txt"]


def test_vectors_are_computed_by_another_process_after_the_answer(
    docs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []

    def popen(command: list[str], **settings: Any) -> None:
        started.append(command)

    monkeypatch.setattr(subprocess, "Popen", popen)
    api.search(docs, "flour")
    assert started == [], "the encoder is not on this machine"
    monkeypatch.setattr(prepared, "default_encoder", lambda: str(tmp_path))
    api.search(docs, "flour")
    (command,) = started
    assert command[2:6] == ["-m", "qontext", "refresh", str(prepared.cache_of(str(docs)))]
    assert read_adapted(prepared.cache_of(str(docs)))["system"] == "bm25"


def test_a_question_computes_no_vectors_of_a_directory_of_words(
    docs: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "words"
    api.refresh(out, source=[docs], words=True)
    (docs / "oven.txt").write_text("The oven bakes bread.\n")
    monkeypatch.setattr(follow, "default_encoder", lambda: str(tiny_encoder))
    assert [answer.document for answer in api.search(out, "bread", refresh=True)] == ["oven.txt"]
    assert read_adapted(out)["system"] == "bm25"


def test_documents_are_told_from_what_verbs_write(docs: Path, tmp_path: Path) -> None:
    passages = api.split(docs, workers=1, out=tmp_path / "passages")
    assert prepared.is_documents(str(docs)) and prepared.is_documents(str(docs / "mill.md"))
    assert not prepared.is_documents(str(passages.path)) and not prepared.is_documents(
        str(tmp_path / "nowhere")
    )
