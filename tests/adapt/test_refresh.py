"""`refresh` follows changed documents without training, and keeps the list of a directory's sources."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapt.calls import adapt
from tests.adapt.conftest import make_report

from qontext import api
from qontext.adapt import follow, publish
from qontext.corpus.sources import FieldNames, Problem, open_source, stamp
from qontext.corpus.sources.several import digest_of, listed, read_listing, set_read_as
from qontext.frame import files, log
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.retrieve.directory import index_of
from qontext.retrieve.searcher import Searcher
from qontext.workflow.recipe import read_recipe


@pytest.fixture
def handbook(tmp_path: Path) -> Path:
    """A folder of two documents, and what nobody reads."""
    folder = tmp_path / "handbook"
    (folder / "guide").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "guide" / "mill.md").write_text("# The mill\n\nThe mill grinds flour.\n")
    (folder / "boat.txt").write_text("A boat crosses the river.\n")
    return folder


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    file = tmp_path / "tickets.jsonl"
    file.write_text(json.dumps({"_id": "7", "title": "Oven", "text": "The oven does not get hot."}) + "\n")
    return file


def documents(out: Path, question: str, **settings: Any) -> list[str]:
    return [answer.document for answer in Searcher(out).search(question, **settings)]


def test_a_directory_begins_with_words_and_gets_vectors_later(
    handbook: Path, small_encoder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "made"
    begun = api.refresh(out, source=[handbook], words=True)
    assert begun["system"] == "bm25" and documents(out, "flour") == ["guide/mill.md"]
    assert not (index_of(out) / "vectors").exists()
    later = api.refresh(out, encoder=small_encoder)
    assert later["system"] == "hybrid-start" and later["encoded_now"] == 2
    # A random encoder may put another document first.
    assert (index_of(out) / "vectors").is_dir() and "guide/mill.md" in documents(out, "flour")[:2]


def test_adapt_begins_with_several_sources(
    handbook: Path, tickets: Path, small_encoder: Path, tmp_path: Path
) -> None:
    out, about = tmp_path / "made", "handbook=How we work."
    sources = [f"handbook={handbook}", f"tickets={tickets}"]
    how: dict[str, Any] = {"encoder": small_encoder, "budget": "90s", "dry_run": True}
    plan: Any = api.adapt(source=sources, about=[about], out=out, **how)
    listing = read_listing(out / "sources.json")
    assert {name: entry.get("ids") for name, entry in listing.items()} == {
        "handbook": "handbook/",
        "tickets": "tickets/",
    }
    assert listing["handbook"]["about"] == "How we work."
    claim = json.loads((out / "plan.json").read_text())["claim"]
    assert claim["inputs"]["documents"]["path"] == f"sources:{out / 'sources.json'}"
    assert "source" not in claim["config"] and plan
    recorded = (out / "plan.json").read_bytes()
    for again in ({"source": sources}, {"documents": tickets}):  # one of them stands for all
        api.adapt(**again, out=out, **how)
        assert json.loads((out / "plan.json").read_text())["claim"] == json.loads(recorded)["claim"]


def test_sources_that_were_only_planned_are_not_adapted_to(
    handbook: Path,
    tickets: Path,
    small_encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, shown = tmp_path / "made", list[Any]()
    monkeypatch.setattr(log, "show_table", lambda title, rows: shown.append(rows.get("sources")))
    how: dict[str, Any] = {"encoder": small_encoder, "budget": "90s", "dry_run": True, "out": out}
    both, about = [f"handbook={handbook}", f"tickets={tickets}"], ["tickets=What customers asked."]
    for sources, settings in ((both, {"about": about}), (both[1:], {}), (both[1:], {})):
        api.adapt(source=sources, **settings, **how)
    (entry,) = read_listing(out / "sources.json").values()
    assert entry.get("about") == "What customers asked." and "ids" not in entry
    assert shown == ["handbook, tickets", "tickets", "tickets"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "adapt needs documents"),
        ({"documents": "HANDBOOK", "source": ["a=HANDBOOK"]}, "adapt needs documents"),
        ({"source": ["a=HANDBOOK"], "about": ["b=What it is."]}, "there is no source 'b'"),
        ({"source": ["a=nowhere"]}, "nowhere"),
    ],
)
def test_adapt_refuses_odd_sources(
    settings: dict[str, Any], message: str, handbook: Path, tmp_path: Path
) -> None:
    filled = json.loads(json.dumps(settings).replace("HANDBOOK", str(handbook)))
    with pytest.raises(QontextError, match=message):
        api.adapt(**filled, out=tmp_path / "made", dry_run=True)
    assert not (tmp_path / "made" / "sources.json").exists()


def test_only_what_is_new_is_encoded(handbook: Path, small_encoder: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    api.refresh(out, source=[handbook], encoder=small_encoder)
    (handbook / "bread.txt").write_text("Bread is baked in ovens.\n")
    (handbook / "boat.txt").unlink()
    changed = api.refresh(out)
    assert changed["documents"] == {"new": 1, "changed": 0, "unchanged": 1, "removed": 1}
    assert (changed["encoded_now"], changed["reused"]) == (1, 1)
    assert documents(out, "bread ovens")[0] == "bread.txt"
    assert api.refresh(out)["changed"] is False


def test_files_that_did_not_change_are_not_read(
    handbook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "made"
    api.refresh(out, source=[handbook], words=True)
    (handbook / ".git" / "index").write_text("hidden files are no documents")

    def read(*_: Any) -> str:
        raise AssertionError("hashed")

    monkeypatch.setattr(follow, "digest_of", read)
    assert api.refresh(out, words=True)["changed"] is False
    os.utime(handbook / "boat.txt")
    with pytest.raises(AssertionError, match="hashed"):
        api.refresh(out, words=True)


def test_a_file_that_was_only_touched_is_not_indexed_again(
    handbook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "made"
    api.refresh(out, source=[handbook], words=True)
    before = stamp(str(handbook)), digest_of(str(handbook))
    os.utime(handbook / "boat.txt")
    assert (stamp(str(handbook)) == before[0], digest_of(str(handbook)) == before[1]) == (False, True)
    monkeypatch.delattr(publish, "run_recipe")
    assert api.refresh(out, words=True)["changed"] is False


def test_one_changed_file_reads_the_others_once_to_hash_them(
    handbook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, read = tmp_path / "made", Counter[str]()
    api.refresh(out, source=[handbook], words=True)
    (handbook / "boat.txt").write_text("The boat sinks.\n")
    for file in handbook.rglob("*.*"):
        os.utime(file, (1e9, 1e9))
    file_hash = files.file_hash

    def counted(path: Path) -> str:
        read[path.name] += 1
        return file_hash(path)

    monkeypatch.setattr(files, "file_hash", counted)
    assert api.refresh(out, words=True)["documents"]["changed"] == 1
    assert read["mill.md"] == read["boat.txt"] == 1
    (handbook / "boat.txt").write_text("The boat swims\n")  # as long, and a moment later
    assert api.refresh(out, words=True)["documents"]["changed"] == 1
    assert documents(out, "swims") == ["boat.txt"] and read["mill.md"] == 1


def test_a_directory_of_adapt_follows_its_documents(
    adapted: Any, write_documents: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert api.refresh(adapted.out)["changed"] is False, "adapt has read them as they are"
    system = Searcher(adapted.out).system
    write_documents([make_report(number) for number in range(1, 31)])
    changed = api.refresh(adapted.out)
    assert changed["documents"] == {"new": 1, "changed": 0, "unchanged": 29, "removed": 1}
    assert changed["reused"] > changed["encoded_now"] > 0
    assert Searcher(adapted.out).system == system, "nothing is trained or chosen again"
    assert "report-30" in documents(adapted.out, "Which year was the bell of Arden 30 repaired?", k=300)


def test_sources_are_added_described_and_removed_one_by_one(
    handbook: Path, tickets: Path, tmp_path: Path
) -> None:
    out = tmp_path / "made"
    api.refresh(out, source=[f"handbook={handbook}"], words=True)
    added = api.refresh(
        out, source=[f"tickets={tickets}"], about=["tickets=What customers asked"], words=True
    )
    assert added["documents"] == {"new": 1, "changed": 0, "unchanged": 2, "removed": 0}, "earlier ids stay"
    assert read_listing(out / "sources.json")["tickets"]["about"] == "What customers asked"
    (answer,) = Searcher(out).search("oven")
    assert (answer.document, answer.place.metadata["source"]) == ("tickets/7", "tickets")
    assert documents(out, "the oven boat", where=["source=handbook"]) == ["boat.txt"]
    api.refresh(out, remove=["tickets"], words=True)
    assert documents(out, "oven") == [] and list(read_listing(out / "sources.json")) == ["handbook"]


def test_a_source_is_added_to_a_directory_of_adapt(adapted: Any, tickets: Path, small_encoder: Path) -> None:
    added = api.refresh(adapted.out, source=[f"tickets={tickets}"])
    assert added["documents"] == {"new": 1, "changed": 0, "unchanged": 30, "removed": 0}
    assert added["encoded_now"] == 1
    assert documents(adapted.out, "oven hot", where=["source=tickets"]) == ["tickets/7"]
    again = adapt(adapted.documents, adapted.out, small_encoder)
    assert again["encoded_now"] == 0, "adapt of one source is adapt of all"
    assert documents(adapted.out, "oven hot", where=["source=tickets"]) == ["tickets/7"]


def test_sources_that_end_alike_get_names_of_their_own(handbook: Path, tmp_path: Path) -> None:
    for name, text in (("a", "A mill."), ("b", "A boat.")):
        (tmp_path / name / "docs").mkdir(parents=True)
        (tmp_path / name / "docs" / f"{name}.txt").write_text(text)
    out, places = tmp_path / "made", [tmp_path / name / "docs" for name in "ab"]
    with pytest.raises(QontextError, match="two sources have the name 'x'"):
        api.refresh(out, source=[f"x={place}" for place in places], words=True)
    api.refresh(out, source=places, words=True)
    assert list(read_listing(out / "sources.json")) == ["docs", "docs-2"]
    assert documents(out, "boat") == ["docs-2/b.txt"]


def test_documents_that_adapt_has_indexed_are_not_new(
    adapted: Any, small_encoder: Path, write_documents: Callable[..., Path], report: Callable[..., Any]
) -> None:
    api.refresh(adapted.out)
    changed = write_documents([report(number) for number in range(1, 31)], "docs.jsonl")
    assert adapt(changed, adapted.out, small_encoder)["encoded_now"] > 0
    assert api.refresh(adapted.out)["changed"] is False


def test_documents_that_return_to_what_a_refresh_saw_are_indexed(
    adapted: Any, small_encoder: Path, write_documents: Callable[..., Path], report: Callable[..., Any]
) -> None:
    """What a refresh recorded is of its index, and not of those that `adapt` built later."""
    before = adapted.documents.read_text()
    assert api.refresh(adapted.out)["changed"] is False
    write_documents([report(number) for number in range(31)], "docs.jsonl")
    assert adapt(adapted.documents, adapted.out, small_encoder)["encoded_now"] > 0
    assert follow.has_changed(adapted.out), "to record what adapt has read"
    adapted.documents.write_text(before)
    assert api.refresh(adapted.out)["documents"]["removed"] == 1
    assert not follow.has_changed(adapted.out) and api.refresh(adapted.out)["changed"] is False


def test_a_refresh_that_was_killed_before_it_recorded_what_it_read_is_not_forgotten(
    adapted: Any, report: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, write = adapted.documents.read_text(), Workdir.write_json

    def killed(work: Workdir, name: str, value: Any) -> None:
        if name == follow.STAMPS:
            raise KeyboardInterrupt
        write(work, name, value)

    adapted.documents.write_text(before + json.dumps(report(30)) + "\n")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Workdir, "write_json", killed)
        api.refresh(adapted.out)
    adapted.documents.write_text(before)
    assert api.refresh(adapted.out)["documents"]["removed"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"remove": ["nowhere"]}, "there is no source 'nowhere'"),
        ({"remove": ["handbook"]}, "the last source cannot be removed"),
        ({"about": ["no sentence"]}, "names no source"),
        ({"source": ["missing=nowhere.jsonl"]}, "no such file or folder"),
        ({"only": ["nowhere"]}, "there is no source 'nowhere'"),
    ],
)
def test_wrong_edits_change_nothing(
    handbook: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    out = tmp_path / "made"
    api.refresh(out, source=[f"handbook={handbook}"], words=True)
    with pytest.raises(QontextError, match=message):
        api.refresh(out, words=True, **settings)
    assert documents(out, "flour") == ["guide/mill.md"]
    assert api.refresh(out, words=True)["changed"] is False


def test_an_index_within_its_source_is_refused(handbook: Path) -> None:
    with pytest.raises(QontextError, match="is inside the source"):
        api.refresh(handbook / "made", source=[handbook], words=True)


def test_a_newer_format_is_refused_and_another_version_is_not(
    handbook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The format is that of the index, not the program's version: after an upgrade nothing is indexed again."""
    out = tmp_path / "made"
    api.refresh(out, source=[handbook], words=True)
    monkeypatch.setattr("qontext.__version__", "99.0")
    monkeypatch.delattr(publish, "run_recipe")
    assert api.refresh(out, words=True)["changed"] is False
    about = json.loads((out / "adapted.json").read_text())
    (out / "adapted.json").write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(QontextError, match="has the format 99, not 1"):
        Searcher(out)


def test_another_folder_of_the_same_name_replaces_nothing(tmp_path: Path) -> None:
    out, places = tmp_path / "made", [tmp_path / name / "docs" for name in "ab"]
    for place, text in zip(places, ("A mill.", "A boat.")):
        place.mkdir(parents=True)
        (place / "one.txt").write_text(text)
        api.refresh(out, source=[place], words=True)
    assert api.refresh(out, source=[places[1]], words=True)["changed"] is False
    assert list(read_listing(out / "sources.json")) == ["docs", "docs-2"]
    assert documents(out, "mill") == ["one.txt"] and documents(out, "boat") == ["docs-2/one.txt"]


def test_ids_of_two_sources_never_meet(handbook: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "made", tmp_path / "other"
    other.mkdir()
    (other / "mill.md").write_text("The windmill is closed.\n")
    api.refresh(out, source=[handbook], words=True)
    added = api.refresh(out, source=[f"guide={other}"], words=True)
    assert added["documents"]["new"] == 1 and "skipped" not in added
    assert documents(out, "windmill") == ["guide-2/mill.md"]


def test_what_is_left_out_is_told(handbook: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    (handbook / "empty.txt").write_text(" ")
    (handbook / "photo.png").write_bytes(b"\x89PNG\0")
    result = api.refresh(out, source=[handbook], words=True)
    assert (result["skipped"], result["not_read"]) == ({"no_text": 1}, {".png": 1})


def test_a_failed_update_keeps_the_sources(
    handbook: Path, tickets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "made"

    def fail(*_: Any, **__: Any) -> None:
        raise QontextError("the disk is on fire")

    with monkeypatch.context() as patch, pytest.raises(QontextError, match="on fire"):
        patch.setattr(publish, "make_index", fail)
        api.refresh(out, source=[handbook], words=True)
    assert not out.exists()
    api.refresh(out, source=[handbook], words=True)
    before = (out / "sources.json").read_bytes()
    with monkeypatch.context() as patch, pytest.raises(QontextError, match="on fire"):
        patch.setattr(publish, "make_index", fail)
        api.refresh(out, source=[f"tickets={tickets}"], words=True)
    assert (out / "sources.json").read_bytes() == before
    assert api.refresh(out, words=True)["changed"] is False


def test_a_failure_after_the_index_counts_keeps_its_sources(
    handbook: Path, tickets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, write = tmp_path / "made", Workdir.write_json

    def full(work: Workdir, name: str, value: Any) -> None:
        if name == follow.STAMPS:
            raise OSError(28, "No space left on device")
        write(work, name, value)

    api.refresh(out, source=[handbook], words=True)
    with monkeypatch.context() as patch, pytest.raises(QontextError, match="the disk is full"):
        patch.setattr(Workdir, "write_json", full)
        api.refresh(out, source=[f"tickets={tickets}"], words=True)
    assert list(read_listing(out / "sources.json")) == ["handbook", "tickets"]
    assert documents(out, "oven hot") == ["tickets/7"]


def test_a_killed_refresh_of_one_source_goes_on(
    adapted: Any, tickets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: follow.Follower) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(follow.Follower, "_index", killed)
        api.refresh(adapted.out, source=[f"tickets={tickets}"])
    assert api.refresh(adapted.out)["documents"]["new"] == 1
    assert documents(adapted.out, "oven hot", where=["source=tickets"]) == ["tickets/7"]


@pytest.mark.parametrize("again", [{"remove": ["tickets"]}, {}, {"only": ["handbook"]}])
def test_a_killed_removal_of_a_source_goes_on(
    handbook: Path, tickets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: dict[str, Any]
) -> None:
    """What was removed from the list must not stay in the index."""
    out = tmp_path / "made"
    api.refresh(out, source=[f"handbook={handbook}", f"tickets={tickets}"], words=True)

    def killed(_: follow.Follower) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(follow.Follower, "_index", killed)
        api.refresh(out, remove=["tickets"], words=True)
    assert follow.has_changed(out)
    assert api.refresh(out, words=True, **again)["documents"]["removed"] == 1
    assert documents(out, "oven hot") == []
    assert not follow.has_changed(out) and api.refresh(out, words=True)["changed"] is False


def test_a_list_of_sources_that_was_not_indexed_is_not_followed(adapted: Any, tickets: Path) -> None:
    """An `adapt --source` that was interrupted leaves its list."""
    entry = {"path": str(tickets)}
    (adapted.out / "sources.json").write_text(json.dumps({"tickets": entry}))
    assert api.refresh(adapted.out)["changed"] is False
    added = api.refresh(adapted.out, source=[f"more={tickets}"])
    assert added["documents"] == {"new": 1, "changed": 0, "unchanged": 30, "removed": 0}
    assert list(read_listing(adapted.out / "sources.json")) == ["docs", "more"]


def test_a_failed_adapt_leaves_no_list_of_sources(
    tickets: Path, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise QontextError("the disk is on fire")

    monkeypatch.setattr("qontext.adapt.prepare.prepare", fail)
    with pytest.raises(QontextError, match="on fire"):
        api.adapt(source=[tickets], out=tmp_path / "made", encoder=small_encoder, yes=True)
    assert not (tmp_path / "made").exists()


def test_endings_are_read_alike_in_all_sources(handbook: Path, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "wheel.css").write_text("wheel { color: red }\n")
    file = tmp_path / "sources.json"

    def ids(read_as: tuple[str, ...]) -> list[str]:
        opened = open_source(f"sources:{file}", fields=FieldNames(), read_as=read_as)
        return [item.id for item in opened.documents() if not isinstance(item, Problem)]

    listing = {"book": listed(str(handbook), tmp_path), "code": listed(str(tmp_path / "code"), tmp_path)}
    file.write_text(json.dumps(listing))
    assert ids(("css=code",)) == ["boat.txt", "guide/mill.md", "wheel.css"]
    set_read_as(listing, ["css=code"])
    file.write_text(json.dumps(listing))
    assert "wheel.css" in ids(()), "as the list says"
    before = digest_of(f"sources:{file}")
    (tmp_path / "code" / "wheel.css").write_text("wheel { color: blue }\n")
    assert digest_of(f"sources:{file}") != before


def test_sources_of_adapt_are_read_as_the_settings_say(
    handbook: Path, small_encoder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "made"
    how: dict[str, Any] = {"encoder": small_encoder, "budget": "90s", "dry_run": True}
    assert api.adapt(source=[f"handbook={handbook}"], read_as=["css=code"], out=out, **how)
    assert read_listing(out / "sources.json")["handbook"]["read_as"] == ["css=code"]


@pytest.mark.parametrize("name", ["@handbook", "$handbook"])
def test_a_folder_whose_name_looks_like_a_reference_is_adapted_to(
    name: str, handbook: Path, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    handbook.rename(name)
    api.adapt(name, out="made", encoder=small_encoder, budget="90s", dry_run=True)
    (step, *_) = read_recipe("made/recipe.toml").steps
    assert step.settings["source"] == f"./{name}" and not step.upstream()
