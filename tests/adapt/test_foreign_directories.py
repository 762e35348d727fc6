"""A directory from anyone: nothing outside of it is deleted, written or run when it is searched or refreshed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tiny import Server

from qontext import api
from qontext.frame import locks, trust
from qontext.frame.errors import QontextError
from qontext.models.reference import model_digest
from qontext.workflow.recipe import read_recipe
from qontext.workflow.tables import SHIPPED


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    """A folder with `docs`, their index `made`, somebody's folder `victim`, and a document that is new."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "river.txt").write_text("The river has a bridge.\n")
    api.refresh(tmp_path / "made", source=[tmp_path / "docs"], words=True)
    (tmp_path / "docs" / "new.txt").write_text("A lighthouse stands on the cliff.\n")
    (tmp_path / "victim" / "precious").mkdir(parents=True)
    (tmp_path / "victim" / "precious" / "thesis.txt").write_text("Years of work.\n")
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("place", ["index-2", "index-2/passages"])
def test_nothing_is_written_or_deleted_through_a_link(indexed: Path, place: str) -> None:
    link, victim = indexed / "made" / place, indexed / "victim"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victim)
    before = files(victim)
    with pytest.raises(QontextError, match="is a link"):
        api.refresh(indexed / "made", words=True)
    assert files(victim) == before and [*victim.iterdir()] == [victim / "precious"]
    link.unlink()
    api.refresh(indexed / "made", words=True)
    assert (indexed / "made" / "index-2" / "passages" / "meta.json").is_file()


def test_an_index_that_was_moved_and_linked_is_left_where_it_is(indexed: Path) -> None:
    made, moved = indexed / "made", indexed / "elsewhere"
    (made / "index").rename(moved)
    (made / "index").symlink_to(moved)
    before = files(moved)
    api.refresh(made, words=True)
    assert files(moved) == before and (made / "index-2").is_dir()
    assert not [*made.glob(".tmp-*")]


@pytest.mark.parametrize("exists", [True, False])
def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path, exists: bool) -> None:
    victim = tmp_path / "victim.txt"
    if exists:
        victim.write_text("Years of work.\n")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / ".lock-adapt").symlink_to(victim)
    with pytest.raises(QontextError, match="symbolic link"), locks.lock(tmp_path / "made", "-adapt"):
        pass
    assert victim.exists() == exists and (not exists or victim.read_text() == "Years of work.\n")


def test_a_recipe_is_shipped_by_its_real_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('marker', 'w').write('ran')\n")
    steps = '[split]\nsource = "docs"\n[generate]\npassages = "@split"\ngenerator = "evil:X"\n'
    (tmp_path / "inner.toml").write_text(steps)
    lexical = Path(SHIPPED, *[".."] * (len(SHIPPED.parts) - 1), *tmp_path.parts[1:], "inner.toml")
    assert lexical.is_file()
    (tmp_path / "outer.toml").write_text(f'[recipe]\nextends = "{lexical}"\n')
    for name in ("inner.toml", "outer.toml"):
        with pytest.raises(trust.Untrusted, match="evil:X"):
            read_recipe(name)
    assert not (tmp_path / "marker").exists()


def test_children_do_not_run_modules_of_the_current_folder(small_encoder: Path, tmp_path: Path) -> None:
    for name in ("typing.py", "qontext.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'marker')!r}, 'a').write(__name__)\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "river.txt").write_text("The river has a bridge.\n")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    # The first search of a folder starts a process that computes vectors; later ones are refused until it ends.
    words = ["search", "docs", "bridge", "--encoder", str(small_encoder)]
    said = "another process"
    while "another process" in said:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "qontext", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stderr
        assert done.returncode == 0 or "another process" in said, said
    assert not (tmp_path / "marker").exists()


def test_a_model_folder_named_like_a_class_runs_no_code(
    small_encoder: Path, indexed: Path, warm: Server
) -> None:
    model, made = indexed / "evil:X", indexed / "made"
    shutil.copytree(small_encoder, model)
    api.refresh(made, encoder=model)
    (indexed / "docs" / "newer.txt").write_text("A ferry crosses the lake.\n")
    modules = json.loads((model / "modules.json").read_text())
    modules[1] = {"idx": 1, "name": "1", "path": "1_X", "type": "qontext.evil:X"}
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "1_X").mkdir()
    (model / "1_X" / "config.json").write_text("{}")
    about = json.loads((made / "adapted.json").read_text())
    about["reference"] = {"path": "evil:X", "digest": model_digest(model)}
    (made / "adapted.json").write_text(json.dumps(about))
    (indexed / "evil.py").write_text("open('marker', 'w').write('ran')\nclass X: pass\n")
    running = warm.launch({"argv": ["refresh", "made"], "cwd": str(indexed)}, indexed / "said")
    (code,) = running.wait()
    assert code == 2 and "evil:X" in running.text() and not (indexed / "marker").exists(), running.text()
