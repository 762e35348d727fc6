"""Passages that were indexed in memory become a directory that is opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qontext import Passage, QontextError, Searcher, api
from qontext.models.encoder import load_encoder
from qontext.models.representations.base import Lengths
from qontext.models.representations.sparse import Sparse
from qontext.retrieve.system import System
from qontext.serve.systems import Opener

PASSAGES = [
    Passage("a", "Mill", "The mill grinds flour. It stands by the river.", "book"),
    Passage("b", "", "A boat crosses the river.", "other"),
    Passage("c", "Bread", "The baker bakes bread of flour.", "book"),
]
QUESTION = "who grinds the flour?"


@pytest.mark.parametrize("has_encoder", [False, True])
def test_a_saved_searcher_answers_as_before(
    has_encoder: bool, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QONTEXT_AUTO_PRECISION", "fp32")
    search = Searcher.build(PASSAGES, tiny_encoder if has_encoder else None)
    search.save(tmp_path / "saved")
    before, after = search(QUESTION, k=3), Searcher(tmp_path / "saved")(QUESTION, k=3)
    for name in ("id", "document", "title", "text", "snippet"):
        assert [getattr(hit, name) for hit in after] == [getattr(hit, name) for hit in before]
    assert [hit.score for hit in after] == pytest.approx([hit.score for hit in before], abs=1e-3)
    asked = api.search(str(tmp_path / "saved"), QUESTION)
    assert [hit.id for hit in asked] == [hit.id for hit in after]
    shown = api.show(tmp_path / "saved")
    assert shown["passages"] == 3
    served = Opener().open("saved", str(tmp_path / "saved"))
    assert [system.name for system in served] == (
        ["saved", "saved/bm25", "saved/dense"] if has_encoder else ["saved"]
    )
    assert [hit.passage for hit in served[0].run({"q": QUESTION}, 3)["q"]] == [hit.id for hit in after]


def test_a_searcher_whose_directory_nobody_could_open_is_not_saved(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    encoder, folder = load_encoder(tiny_encoder), tmp_path / "sparse"
    folder.mkdir()
    Sparse().save(encoder, folder, Lengths(32, 64), max_length=64)
    search = Searcher.build(PASSAGES, folder, device="cpu")
    assert len(search(QUESTION)) == 3
    with pytest.raises(QontextError, match="the representation 'sparse' are not saved"):
        search.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_searchers_are_named_and_wrong_types_refused(tmp_path: Path) -> None:
    search: Any = Searcher.build(PASSAGES)
    assert repr(search) == "Searcher(3 passages: BM25)"
    search.save(tmp_path / "saved")
    assert repr(Searcher(tmp_path / "saved")) == f"Searcher({tmp_path / 'saved'}: BM25)"
    for call, message in (
        (lambda: search(["mill", "boat"]), "a question is a text, not a list"),
        (lambda: search.run(["mill"]), "expected queries as id → text, not a list"),
        (lambda: search.search("mill", group="file"), "unknown group 'file'"),  # type: ignore[arg-type]
        (lambda: Searcher.build([{"_id": "a", "text": "mill"}]), "expected passages or texts, not dict"),  # type: ignore[list-item]
    ):
        with pytest.raises(QontextError, match=message):
            call()


def test_a_system_is_set_by_value_or_name(tiny_encoder: Path, tmp_path: Path) -> None:
    search = Searcher.build(PASSAGES, tiny_encoder)
    search.system = "start"
    assert search.system == System("start")
    with pytest.raises(QontextError, match="unknown system 'hybird'"):
        search.system = "hybird"
    search.save(tmp_path / "saved")
    opened = Searcher(tmp_path / "saved")
    assert opened.system == System("start") and opened.run({"q": QUESTION}).ids.tolist() == (
        search.run({"q": QUESTION}).ids.tolist()
    )


@pytest.mark.parametrize("system", ["hybrid-start", "tokens-start", "reranked-start"])
def test_a_system_that_is_not_in_memory_is_refused(system: Any, tiny_encoder: Path, tmp_path: Path) -> None:
    search = Searcher.build(PASSAGES, None if system == "hybrid-start" else tiny_encoder)
    search.system = system
    for call in (lambda: search(QUESTION), lambda: search.save(tmp_path / "saved")):
        with pytest.raises(QontextError, match=f"has no system '{system}'"):
            call()


def test_answers_are_short_and_a_table_in_a_notebook() -> None:
    answers = Searcher.build([Passage("<a>", "", "The <b>mill</b> grinds flour " + "and flour " * 99, "d")])(
        "flour"
    )
    assert repr(answers[0]).startswith("Answer(1, '<a>', 0.") and len(repr(answers)) < 120
    page = answers._repr_html_()
    assert page.startswith("<table>") and "<td>&lt;a&gt;</td>" in page and "<b>" not in page
    assert "title" not in page and answers[0]._repr_html_() == page, "empty columns are left out"
    assert (
        Searcher.build(["boat"])("zebra")._repr_html_()
        == "<table><thead><tr></tr></thead><tbody></tbody></table>"
    )
