"""Directories that are whole or not there: atomic parts, states, locks, digests, and a disk that is full."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest

from qontext.frame import artifacts, execution
from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.inputs import fingerprint
from qontext.frame.stages import Stage


class Settings(StageConfig):
    source: Annotated[str, Input()]
    """What is copied."""

    word: str = "a"
    """What is put before it."""


def copy(settings: Settings, work: Workdir) -> dict[str, Any]:
    with work.write("part.txt") as path:
        path.write_text(settings.word + Path(settings.source).read_text())
    work.write_json("logs/times.json", os.urandom(4).hex())
    return {"words": 1}


STAGE = Stage("copy", Settings, copy, "")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in.txt").write_text("text")
    return tmp_path / "in.txt"


def make(source: Path, out: Path, *, overwrite: bool = False, **settings: Any) -> Artifact:
    return execution.execute(STAGE, Settings(source=str(source), **settings), out, overwrite=overwrite)


def leftovers(path: Path) -> list[str]:
    return sorted(p.name for p in path.rglob("*") if not p.name.startswith(".lock"))


# Writing


def test_a_part_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    work = Workdir(tmp_path)
    with work.write("deep/part.txt") as path:
        path.write_text("x")
        assert not work.has("deep/part.txt") and work.names() == []
    assert work.has("deep/part.txt") and work.names() == ["deep/part.txt"]
    with pytest.raises(RuntimeError), work.write("other.txt") as path:
        path.write_text("half")
        raise RuntimeError
    assert leftovers(tmp_path) == ["deep", "part.txt"]


@pytest.mark.parametrize("name", ["../elsewhere", "a/../../elsewhere", "/tmp/elsewhere"])
def test_a_part_is_below_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(QontextError, match="not below the output directory"), Workdir(tmp_path).write(name):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    work = Workdir(tmp_path)
    with work.write_folder("model") as folder:
        (folder / "a").mkdir()
        (folder / "a" / "b.txt").write_text("x")
        assert not work.has("model")
    assert work.names() == ["model/a/b.txt"]
    with work.write_folder(".") as folder:
        (folder / "config.json").write_text("{}")
    assert work.names() == ["config.json", "model/a/b.txt"]
    with pytest.raises(RuntimeError), work.write_folder("other"):
        raise RuntimeError
    work.remove("model")
    assert leftovers(tmp_path) == ["config.json"]


@pytest.mark.parametrize("folder", [False, True])
def test_a_full_disk_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path, folder: bool
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    work = Workdir(tmp_path / "out")
    work.path.mkdir()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(QontextError, match=r"part: the disk is full.*resumes"):
        if folder:
            with work.write_folder("part") as path:
                (path / "a").write_text("x")
        else:
            with work.write("part") as path:
                path.write_text("x")
    assert leftovers(work.path) == []


# States


def test_the_states_of_a_directory(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    assert artifacts.state(out, "k")[0] == "absent"
    out.mkdir()
    (out / ".lock-claim").write_text("")
    assert artifacts.state(out, "k")[0] == "absent"
    claim = {"verb": "copy", "format": 1, "config": {}, "inputs": {}, "key": "k"}
    work = artifacts.begin(out, claim)
    assert artifacts.state(out, "k")[0] == "interrupted"
    assert artifacts.state(out, "other")[0] == "stale"
    with pytest.raises(QontextError, match=r"this 'copy' directory is not finished.*resumes"):
        artifacts.open_artifact(out)
    work.write_json("part.json", 1)
    artifacts.finish(work, claim, {"n": 1}, 0.5)
    assert artifacts.state(out, "k")[0] == "done"
    assert artifacts.state(out, "other")[0] == "stale"
    assert not (out / artifacts.CLAIM).exists()
    (out / artifacts.META).unlink()
    assert artifacts.state(out, "k")[0] == "foreign"


def test_done_is_not_done_again(tmp_path: Path, source: Path) -> None:
    first = make(source, tmp_path / "out")
    (tmp_path / "out" / "part.txt").write_text("Atext")
    assert make(source, tmp_path / "out").meta == first.meta
    assert (tmp_path / "out" / "part.txt").read_text() == "Atext"


def test_killed_between_its_description_and_its_claim(tmp_path: Path, source: Path) -> None:
    artifact = make(source, tmp_path / "out")
    before = leftovers(tmp_path / "out")
    (tmp_path / "out" / "claim.json").write_text(json.dumps(artifact.meta))
    assert make(source, tmp_path / "out").digest == artifact.digest
    assert leftovers(tmp_path / "out") == before


def test_another_result_is_refused_with_what_differs(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    make(source, out)
    with pytest.raises(QontextError, match=r"word was 'a' and is now 'b'.*--overwrite"):
        make(source, out, word="b")
    source.write_text("changed")
    with pytest.raises(QontextError, match=rf"the content of source \({source}\) changed"):
        make(source, out)
    assert (out / "part.txt").read_text() == "atext"
    assert make(source, out, word="b", overwrite=True).config == {"word": "b"}
    assert (out / "part.txt").read_text() == "bchanged"


def test_the_same_content_elsewhere_is_the_same(tmp_path: Path, source: Path) -> None:
    artifact = make(source, tmp_path / "out")
    moved = source.rename(tmp_path / "moved.txt")
    assert make(moved, tmp_path / "out").meta == artifact.meta


def test_a_foreign_directory_is_never_touched(tmp_path: Path, source: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(QontextError, match="not empty and was not written by Qontext"):
            make(source, tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"
    with pytest.raises(AssertionError):
        artifacts.clear(tmp_path / "out")


def test_an_input_is_never_overwritten(tmp_path: Path, source: Path) -> None:
    artifact = make(source, tmp_path / "out")
    (tmp_path / "link").symlink_to("out")
    before = leftovers(artifact.path)
    for out in (artifact.path, tmp_path / "link", tmp_path / "out" / ".." / "out"):
        for overwrite in (False, True):
            with pytest.raises(QontextError, match="--out contains the input source"):
                make(artifact.path / "part.txt", out, overwrite=overwrite)
    with pytest.raises(QontextError, match="--out is the input source"):
        make(artifact.path, artifact.path, overwrite=True)
    assert leftovers(artifact.path) == before and artifact.verify() == []


def test_an_error_before_any_part_leaves_no_trace(tmp_path: Path, source: Path) -> None:
    def refuse(settings: Settings, work: Workdir) -> dict[str, Any]:
        raise QontextError("no")

    with pytest.raises(QontextError):
        execution.execute(Stage("copy", Settings, refuse, ""), Settings(source=str(source)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_of_a_link_in_a_directory_that_is_replaced_only_the_link_goes(tmp_path: Path, source: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thesis.txt").write_text("mine")
    (make(source, tmp_path / "out").path / "extra").symlink_to(tmp_path / "elsewhere")
    again = make(source, tmp_path / "out", overwrite=True, word="b")
    assert not (again.path / "extra").is_symlink() and (tmp_path / "elsewhere" / "thesis.txt").exists()


def test_a_file_that_is_read_is_not_written(tmp_path: Path, source: Path) -> None:
    stage = Stage("copy", Settings, copy, "", file="part.txt")
    with pytest.raises(QontextError, match="--out is the input source"):
        execution.execute(stage, Settings(source=str(source)), source, overwrite=True)
    assert source.read_text() == "text"
    execution.execute(stage, Settings(source=str(source)), tmp_path / "other.txt")
    assert (tmp_path / "other.txt").read_text() == "atext"


def test_a_rank_that_begins_leaves_alone_what_another_one_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with artifacts.open_root(tmp_path).write("recipe.toml") as path:
        path.write_text("text")
        monkeypatch.setenv("RANK", "0")
        artifacts.open_root(tmp_path)
    assert (tmp_path / "recipe.toml").read_text() == "text"


def test_logs_are_no_part_of_the_digest(tmp_path: Path, source: Path) -> None:
    one, two = make(source, tmp_path / "one"), make(source, tmp_path / "two")
    assert one.meta["parts"]["logs/times.json"] != two.meta["parts"]["logs/times.json"]
    assert one.digest == two.digest != make(source, tmp_path / "three", word="b").digest


def test_verify_names_what_changed(tmp_path: Path, source: Path) -> None:
    artifact = make(source, tmp_path / "out")
    assert artifact.verify() == []
    (tmp_path / "out" / "part.txt").write_text("tampered")
    (tmp_path / "out" / "logs" / "times.json").unlink()
    assert sorted(artifact.verify()) == ["logs/times.json", "part.txt"]


# Locks

HOLDER = """
import os, sys, time
from pathlib import Path
from qontext.frame import locks
with locks.lock(Path(sys.argv[1]), "-0"):
    if len(sys.argv) == 2 or os.fork() == 0:  # the child speaks, for only then has it been born wholly
        print(os.getpid(), flush=True)
    time.sleep(600)
"""


def test_a_directory_that_another_process_writes_is_refused(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(out)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        with pytest.raises(
            QontextError,
            match="another process is writing this directory",
        ):
            make(source, out)
        holder.kill()
    assert make(source, out).summary == {"words": 1}


def test_a_lock_ends_with_its_holder_though_a_forked_child_lives_on(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", HOLDER, str(out), "fork"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        try:
            os.kill(child, 0)  # it lives
            assert make(source, out).summary == {"words": 1}
        finally:
            os.kill(child, 9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"verb": "copy", "key": 3, "config": [], "inputs": 4}',
        '{"verb": "copy", "key": "k", "config": {}, "inputs": {}, "digest": "d", "summary": {}, "parts": []}',
    ],
)
@pytest.mark.parametrize("name", [artifacts.META, artifacts.CLAIM])
def test_a_damaged_description_is_told(tmp_path: Path, source: Path, name: str, text: str) -> None:
    out = tmp_path / "out"
    make(source, out)
    if name == artifacts.CLAIM:
        if "digest" in text:
            pytest.skip("a claim needs no parts")
        (out / artifacts.META).unlink()
    (out / name).write_text(text)
    for use in (artifacts.open_artifact, fingerprint, lambda path: make(source, path)):
        with pytest.raises(QontextError, match=rf"{name}: damaged: .*Remove the directory"):
            use(out)


def test_a_part_that_was_deleted_is_missed_and_can_be_made_anew(tmp_path: Path, source: Path) -> None:
    artifact = make(source, tmp_path / "out")
    (artifact.path / "part.txt").unlink()
    for use in (artifact.parts, lambda: make(source, artifact.path)):
        with pytest.raises(QontextError, match=r"out: its file part.txt is missing"):
            use()
    assert make(source, artifact.path, overwrite=True).verify() == []


def test_what_is_no_file_is_not_read_forever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "text").write_text("x")
    before = fingerprint(tmp_path / "folder")
    os.mkfifo(tmp_path / "folder" / "pipe")
    (tmp_path / "folder" / "dangling").symlink_to("nowhere")
    (tmp_path / "folder" / "itself").symlink_to(".")
    (tmp_path / "folder" / "loop").symlink_to("loop")
    assert fingerprint(tmp_path / "folder") == before
    for name in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(QontextError, match=r"is a (pipe|device), not a regular file"):
            fingerprint(name)


def test_nothing_is_pickled_and_nothing_that_is_read_can_run() -> None:
    forbidden = re.compile(
        r"^\s*(?:import|from) (?:pickle|dill|joblib|shelve|marshal)|allow_pickle=True|torch\.(?:load|save)\(|"
        r"trust_remote_code=True|weights_only=False",
        re.M,
    )
    for module in Path(artifacts.__file__).parents[1].rglob("*.py"):
        assert not forbidden.search(module.read_text(encoding="utf-8")), module


def test_the_number_format_is_that_of_whoever_computed_first(tmp_path: Path) -> None:
    """Other processes, and resumed ones on other machines, go on in it; only the setting itself changes it."""
    claim = {"verb": "split", "format": 1, "config": {"precision": "auto"}, "inputs": {}, "key": "k"}
    work = artifacts.begin(tmp_path, claim, "0")
    assert artifacts.settle(work, "auto", "bf16") == artifacts.settle(work, "auto", "fp32") == "bf16"
    assert artifacts.settle(work, "fp32", "fp32") == "fp32"
    assert artifacts.settle(work, "bf16", "bf16") == "bf16"
    assert artifacts.finish(work, claim, {}, 0.0).meta["computed"] == "bf16"
    assert artifacts.settle(Workdir(tmp_path, "1"), "auto", "fp32") == "bf16"
