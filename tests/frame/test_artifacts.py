"""Directories that are whole or not there: atomic parts, states, locks, digests, and a disk that is full."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest

from qontext.frame import artifacts, execution, locks
from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.fingerprint import fingerprint
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


def test_what_a_killed_library_left_beside_its_file_is_swept(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Workdir(tmp_path).write("deep/weights.safetensors") as path:
        (path.parent / ".tmpIbQ3A4").write_text("half")  # as safetensors names it
        left = tmp_path / "left"
        shutil.copytree(tmp_path / "deep", left)
        raise ZeroDivisionError
    assert leftovers(tmp_path / "deep") == []
    assert list(left.rglob(".tmpIbQ3A4")), "it was elsewhere than in the folder that is swept"
    Path(next(left.glob(".tmp-*"))).rename(tmp_path / f".tmp-0.{2**22 + 1}-weights.safetensors")
    assert Workdir(tmp_path).names() == []
    Workdir(tmp_path).sweep()
    assert not list(tmp_path.rglob(".tmp-*"))


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


def test_sweep_removes_this_writers_leavings_only(tmp_path: Path) -> None:
    for name in (".tmp-0.77-a", ".tmp-1-of-2.77-b", "deep/.tmp-0.77-c", "part"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".tmp-0.77-folder").mkdir()
    Workdir(tmp_path, "0").sweep()
    assert leftovers(tmp_path) == [".tmp-1-of-2.77-b", "deep", "part"]


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


def test_a_disk_that_fills_while_writing(tmp_path: Path) -> None:
    """A real limit of the system, in a process of its own: what was finished before stays, and it resumes."""
    code = """
import resource, signal, sys
from pathlib import Path
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
work = Workdir(Path(sys.argv[1]))
with work.write("first") as path:
    path.write_bytes(b"x" * 100)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with work.write("second") as path:
        path.write_bytes(b"x" * 5000)
except QontextError as error:
    assert "second: cannot write here: file too large" in str(error)
print(work.names(), sorted(p.name for p in work.path.iterdir()))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == "['first'] ['first']\n", done.stderr


def test_a_place_that_cannot_be_written(tmp_path: Path, source: Path) -> None:
    with pytest.raises(QontextError, match="a file is in the way"):
        make(source, source / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(QontextError, match=r"a file is in the way|not written by Qontext"):
        make(source, tmp_path / "file")


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


@pytest.mark.parametrize("parts", [[], ["other.txt"]])
def test_only_what_left_parts_is_resumed_with_a_note(
    tmp_path: Path, source: Path, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that was killed before its first part left a claim alone."""
    artifact = make(source, tmp_path / "out")
    claim = {name: artifact.meta[name] for name in ("verb", "format", "config", "inputs", "key")}
    artifacts.clear(tmp_path / "out")
    work = artifacts.begin(tmp_path / "out", claim)
    for name in parts:
        work.write_text(name, "")
    make(source, tmp_path / "out")
    assert ("Resuming" in capsys.readouterr().err) == bool(parts)


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


# What an artifact says


def test_the_output_directory_may_be_a_link(tmp_path: Path, source: Path) -> None:
    """After an error it is empty, and the error is the one that is told; the link stays."""

    def fail(settings: Settings, work: Workdir) -> None:
        (work.path / "logs").mkdir()
        raise QontextError("of the stage")

    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    with pytest.raises(QontextError, match=r"^of the stage$"):
        execution.execute(Stage("copy", Settings, fail, ""), Settings(source=str(source)), tmp_path / "out")
    assert make(source, tmp_path / "out").summary == {"words": 1}
    assert (tmp_path / "out").is_symlink() and (tmp_path / "disk" / "part.txt").exists()


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


def test_an_output_directory_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WithOut(StageConfig):
        out: str | None = None

    monkeypatch.setenv("HOME", str(tmp_path))
    assert execution.directory("~/runs") == tmp_path / "runs"
    assert WithOut(out="~/runs").out == str(tmp_path / "runs")
    assert WithOut(out="./runs/").out == "./runs/" and WithOut().out is None


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


def test_a_directory_that_is_finished_while_another_process_looks(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = make(source, tmp_path / "out")
    (artifact.path / artifacts.META).rename(tmp_path / artifacts.META)
    (artifact.path / artifacts.CLAIM).write_text("{}")
    read = artifacts.read_description

    def finish_first(path: Path) -> dict[str, Any]:
        if path.name == artifacts.CLAIM:
            (tmp_path / artifacts.META).rename(artifact.path / artifacts.META)
            path.unlink()
        return read(path)

    monkeypatch.setattr(artifacts, "read_description", finish_first)
    assert artifacts.state(artifact.path, artifact.meta["key"])[0] == "done"


def test_differences_in_words() -> None:
    old = {"verb": "split", "format": 1, "config": {"n": 1}, "inputs": {"a": {"path": "x", "digest": "1"}}}
    new = {"verb": "split", "format": 2, "config": {"n": 2}, "inputs": {"a": {"path": "y", "digest": "2"}}}
    assert artifacts.differences(old, new) == (
        "n was 1 and is now 2; a was x and is now y; it was written in format 1, this version writes 2"
    )
    assert artifacts.differences(old, {**new, "verb": "tokens"}) == "it was written by 'qontext split'"


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


def test_opening_what_is_no_artifact(tmp_path: Path, source: Path) -> None:
    with pytest.raises(QontextError, match="no such directory"):
        artifacts.open_artifact(tmp_path / "nowhere")
    with pytest.raises(QontextError, match="not a Qontext directory"):
        artifacts.open_artifact(tmp_path)
    make(source, tmp_path / "out")
    with pytest.raises(QontextError, match="expected the output of 'qontext split', found that of"):
        artifacts.open_artifact(tmp_path / "out", verb="split")
    (tmp_path / "out" / "meta.json").write_text("[1, 2")
    with pytest.raises(QontextError, match=r"meta.json: damaged: not JSON"):
        artifacts.open_artifact(tmp_path / "out")
    (tmp_path / "out" / "meta.json").write_text(json.dumps([1]))
    with pytest.raises(QontextError, match=r"meta.json: damaged: input should be an object"):
        artifacts.open_artifact(tmp_path / "out")


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
            match=rf"another process is writing this directory \(process {holder.pid} on .+\)\. Wait for it",
        ):
            make(source, out)
        holder.kill()
    assert make(source, out).summary == {"words": 1}


@pytest.mark.skipif(not locks.REMOVABLE, reason="Windows locks all files")
@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSYS, "the file system cannot lock files: function not implemented"),
        (errno.EACCES, "another process is writing this directory"),  # of a network file system
    ],
)
def test_a_file_system_without_locks_is_not_blamed_on_another_process(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with pytest.raises(QontextError, match=message):
        make(source, tmp_path / "out")


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


@pytest.mark.parametrize("folder", [False, True])
def test_a_disk_error_that_a_library_tells_in_its_own_words(tmp_path: Path, folder: bool) -> None:
    """safetensors and numpy raise no OSError with a number."""
    work = Workdir(tmp_path)
    for error in (
        Exception("Error while serializing: I/O error: No space left on device (os error 28)"),
        OSError("1000 requested and 12 written"),
    ):
        with pytest.raises(QontextError, match=r"part: the disk is full.*resumes"):
            with work.write_folder("part") if folder else work.write("part"):
                raise error
    assert leftovers(work.path) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"verb": "copy"}',
        '{"verb": "copy", "key": 3, "config": [], "inputs": 4}',
        '{"verb": "copy", "key": "k", "config": {}, "inputs": {"a": 1}}',
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


@pytest.mark.parametrize("name", ["x" * 5000, "", "a\0b"])
def test_names_that_no_file_can_have(tmp_path: Path, source: Path, name: str) -> None:
    with pytest.raises(
        QontextError, match=r"source\b.* (is not a valid path|is an empty name|contains a NUL)"
    ):
        execution.execute(STAGE, Settings.make({"source": name}, where="copy"), tmp_path / "out")
    if len(name) > 9:
        with pytest.raises(QontextError, match="cannot write here: file name too long"):
            make(source, tmp_path / name)


def test_nothing_is_pickled_and_nothing_that_is_read_can_run() -> None:
    forbidden = re.compile(
        r"^\s*(?:import|from) (?:pickle|dill|joblib|shelve|marshal)|allow_pickle=True|torch\.(?:load|save)\(|"
        r"trust_remote_code=True|weights_only=False",
        re.M,
    )
    for module in Path(artifacts.__file__).parents[1].rglob("*.py"):
        assert not forbidden.search(module.read_text(encoding="utf-8")), module


def test_a_writer_begins_and_looks_around_while_another_one_writes(tmp_path: Path) -> None:
    """The other one's temporary folders come and go."""
    ended, count = threading.Event(), 0

    def write() -> None:
        nonlocal count
        other = Workdir(tmp_path, "1-of-2", 1, 2)
        while not ended.is_set():
            count += 1
            other.write_text(f"part-{count % 50}.txt", "x")

    writing = threading.Thread(target=write)
    writing.start()
    try:
        work = Workdir(tmp_path, "0-of-2", 0, 2)
        for _ in range(300):
            before = count
            while count == before:
                assert writing.is_alive()
                work.sweep()
                assert all(name.startswith("part-") for name in work.names())
    finally:
        ended.set()
        writing.join()
