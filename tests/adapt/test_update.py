"""An update builds the next index beside the one that is searched, and whatever ends it leaves that one as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapt.calls import adapt
from tests.adapt.conftest import make_report

from qontext import api
from qontext.adapt import publish
from qontext.adapt.config import AdaptConfig
from qontext.adapt.run import _claim
from qontext.adapt.state import Planned, _refuse_another_source
from qontext.frame import locks
from qontext.frame.errors import QontextError
from qontext.retrieve.directory import index_of
from qontext.retrieve.searcher import Searcher
from qontext.serve.systems import Opener

QUESTION = "Which year was the bell of Corrie 12 repaired?"


def answers(out: Path) -> list[Any]:
    return list(Searcher(out).search(QUESTION, k=5))


def content(out: Path) -> dict[str, bytes]:
    paths = (path for path in out.rglob("*") if path.is_file() and not path.name.startswith(".lock"))
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


def indexes(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir() if "index" in path.name)


@pytest.fixture
def changed(write_documents: Callable[..., Path], report: Callable[..., Any]) -> Path:
    """The documents without two of them, one changed, one new."""
    documents = [report(number) for number in range(2, 30)]
    documents[3] = {**documents[3], "text": "Nothing is known of this lighthouse but its name."}
    return write_documents([*documents, report(40)], "docs.jsonl")


def test_a_failed_update_changes_nothing(adapted: Any, small_encoder: Path) -> None:
    before, earlier = answers(adapted.out), content(adapted.out)
    adapted.documents.write_text("")
    with pytest.raises(QontextError, match=r"made is unchanged and answers as before"):
        adapt(adapted.documents, adapted.out, small_encoder)
    assert content(adapted.out) == earlier and answers(adapted.out) == before


def test_the_index_answers_while_it_is_updated(
    adapted: Any, small_encoder: Path, changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, before, asked = adapted.out, answers(adapted.out), []

    def run_recipe(recipe: Any, folder: Path, **settings: Any) -> Any:
        asked.append(answers(out))
        rows = original(recipe, folder, **settings)
        asked.append(answers(out))
        return rows

    original = publish.run_recipe
    monkeypatch.setattr(publish, "run_recipe", run_recipe)
    result = adapt(changed, out, small_encoder)
    assert asked == [before, before]
    assert result["documents"] == {"new": 1, "changed": 1, "unchanged": 27, "removed": 2}
    assert indexes(out) == ["index", "index-2"]


def test_what_changed_since_it_was_measured_is_not_judged(
    adapted: Any, small_encoder: Path, changed: Path
) -> None:
    earlier = content(adapted.out)
    with pytest.raises(QontextError, match=r"the documents changed since then\. Remove --judge, or"):
        adapt(changed, adapted.out, small_encoder, judge=5)
    assert content(adapted.out) == earlier


def test_what_holds_the_earlier_index_keeps_it(adapted: Any, small_encoder: Path, changed: Path) -> None:
    """A searcher reads its parts when they are first needed, which may be after an update."""
    out, before = adapted.out, answers(adapted.out)
    searcher, systems = Searcher(out), Opener(device="cpu").open_all([str(out)])
    adapt(changed, out, small_encoder)
    assert indexes(out) == ["index", "index-2"]
    assert list(searcher.search(QUESTION, k=5)) == before
    assert len(systems[0].search(QUESTION, 5)) == 5


@pytest.mark.parametrize("ended", ["before the index counts", "before the plan is written"])
def test_an_update_that_ended_between_two_files_is_repaired(
    adapted: Any, small_encoder: Path, changed: Path, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    out, before = adapted.out, answers(adapted.out)

    def end(*args: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            "qontext.adapt." + ("state.Planned.write" if "plan" in ended else "follow.changed_documents"),
            end,
        )
        with pytest.raises(KeyboardInterrupt):
            adapt(changed, out, small_encoder)
    assert (answers(out) == before) == (ended == "before the index counts")
    assert {answer.id for answer in answers(out)}
    result = adapt(changed, out, small_encoder)
    assert result["updated"]
    assert indexes(out) == ["index", "index-2"]
    assert json.loads((out / "plan.json").read_text())["claim"]["inputs"]["documents"]["path"] == str(changed)
    assert "report-40" in {answer.document for answer in Searcher(out).search("lighthouse", k=500)}


def test_what_an_interrupted_update_left_is_removed_when_there_is_nothing_to_update(
    adapted: Any,
    small_encoder: Path,
    changed: Path,
    write_documents: Callable[..., Path],
    report: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(*args: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("qontext.adapt.follow.changed_documents", end)
        with pytest.raises(KeyboardInterrupt):
            adapt(changed, adapted.out, small_encoder)
    assert indexes(adapted.out) == ["index", "index-2"]
    adapt(write_documents([report(number) for number in range(30)]), adapted.out, small_encoder)
    assert indexes(adapted.out) == ["index"] and index_of(adapted.out).name == "index"


def test_documents_of_another_kind_are_another_directory(
    adapted: Any, small_encoder: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        QontextError, match=r"made: was made from .*docs.jsonl, not from pydocs:\. Choose another --out"
    ):
        adapt(Path("pydocs:"), adapted.out, small_encoder)
    recorded: Any = {"path": "pydocs:", "beside": "documents"}
    with pytest.raises(QontextError, match=r"not from \. Choose another --out"):
        _refuse_another_source(AdaptConfig(documents="."), Path("made"), recorded)
    planned = json.loads((adapted.out / "plan.json").read_text())
    planned["request"]["keep"] = True
    (adapted.out / "plan.json").write_text(json.dumps(planned))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("A lighthouse.")
    with pytest.raises(QontextError, match=r"has documents, not passages, .* answers as before"):
        adapt(tmp_path / "folder", adapted.out, small_encoder)


def test_one_adapt_at_a_time_writes_a_directory(adapted: Any, small_encoder: Path, changed: Path) -> None:
    earlier = content(adapted.out)
    with locks.lock(adapted.out, "-adapt"):
        with pytest.raises(QontextError, match="another process is writing this directory"):
            adapt(changed, adapted.out, small_encoder)
        assert content(adapted.out) == earlier


def test_output_inside_the_documents_is_refused_before_anything_is_read(
    tmp_path: Path, small_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "a.txt").write_text("A lighthouse stands on the northern harbour.")
    monkeypatch.setattr("qontext.frame.inputs.fingerprint", lambda path: pytest.fail("it is read"))
    for write in (
        lambda out: adapt(documents, out, small_encoder),
        lambda out: api.split(documents, out=out),
    ):
        with pytest.raises(QontextError, match=r"--out is inside the folder .*documents, which is read as"):
            write(documents / "made" / "inside")
    assert [path.name for path in documents.iterdir()] == ["a.txt"]


def test_a_directory_that_stays_empty_is_removed(tmp_path: Path, small_encoder: Path) -> None:
    (tmp_path / "docs.jsonl").write_text("")
    with pytest.raises(QontextError):
        adapt(tmp_path / "docs.jsonl", tmp_path / "made", small_encoder)
    assert not (tmp_path / "made").exists()


def plan_of(documents: Path, root: Path, **settings: Any) -> Planned:
    """A plan for these documents with their own labels, as it would be recorded now."""
    config = AdaptConfig(documents=str(documents), labels=str(documents), **settings)
    nothing: Any = None
    return Planned(claim=_claim(config, root), request=nothing, plan=nothing)


@pytest.fixture
def labeled(reports: Path, tmp_path: Path) -> Path:
    """A folder in BEIR's layout, of documents and of labels."""
    folder = tmp_path / "labeled"
    (folder / "qrels").mkdir(parents=True)
    reports.rename(folder / "corpus.jsonl")
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "who mended the bell"}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\treport-1\t1\n")
    return folder


def add(file: Path, **row: str) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(row) + "\n")


def test_documents_beside_their_labels_change_without_another_training(labeled: Path, tmp_path: Path) -> None:
    before = plan_of(labeled, tmp_path)
    add(labeled / "corpus.jsonl", **make_report(30))
    (labeled / "README.md").write_text("What it is.\n")
    now = plan_of(labeled, tmp_path)
    assert before.documents != now.documents and before.is_for(now.claim)
    assert not before.is_for(plan_of(labeled, tmp_path, seed=7).claim)
    (labeled / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq\treport-2\t1\n")
    assert not before.is_for(plan_of(labeled, tmp_path).claim)
    now = plan_of(labeled, tmp_path)
    add(labeled / "queries.jsonl", _id="more", text="who painted it")
    assert not now.is_for(plan_of(labeled, tmp_path).claim)


def test_labels_of_docstrings_change_with_these(tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    api.docset("pydocs:json,logging", passages=24, out=folder)
    before = plan_of(folder, tmp_path)
    api.docset("pydocs:json,logging,email", passages=24, out=folder, overwrite=True)
    now = plan_of(folder, tmp_path)
    assert before.documents != now.documents and before.is_for(now.claim)
