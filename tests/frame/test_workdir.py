"""Scratch folders: beside the result, gone afterwards, and swept where their process was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qontext.frame.workdir import Workdir, has_only_scratch, scratch

HOLD = """
import sys
from pathlib import Path
from qontext.frame.workdir import scratch

with scratch(Path("out")) as folder:
    (folder / "large").write_text("x")
    print(folder, flush=True)
    sys.stdin.readline()
"""


def hold(where: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that uses a scratch folder under `where`/out."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=where, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, where / process.stdout.readline().strip()


def test_a_killed_process_leaves_a_folder_that_the_next_one_removes(tmp_path: Path) -> None:
    process, folder = hold(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (folder / "large").exists() and has_only_scratch(tmp_path / "out")
    with scratch(tmp_path / "out") as mine:
        assert not folder.exists() and mine.is_dir()
    assert not mine.exists()


def test_a_folder_in_use_stays(tmp_path: Path) -> None:
    process, folder = hold(tmp_path)
    with scratch(tmp_path / "out") as mine:
        assert (folder / "large").exists() and mine != folder
    assert (folder / "large").exists()
    process.communicate("\n")
    assert process.returncode == 0 and not folder.exists()


def test_a_directory_that_was_made_for_it_goes_with_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), scratch(tmp_path / "new"):
        raise ZeroDivisionError
    assert not (tmp_path / "new").exists()
    with scratch(tmp_path / "new"):
        (tmp_path / "new" / "result").touch()
    assert (tmp_path / "new" / "result").exists() and not has_only_scratch(tmp_path / "new")


class Killed(BaseException):
    pass


def test_a_folder_whose_removal_is_cut_short_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a checkpoint would be taken for the newest one."""
    work = Workdir(tmp_path)
    for name in ("checkpoints/step-1", "checkpoints/step-2"):
        with work.write_folder(name) as folder:
            (folder / "state.json").write_text("{}")

    def one_file(path: Path) -> None:
        next(file for file in path.rglob("*") if file.is_file()).unlink()
        raise Killed

    with monkeypatch.context() as killed, pytest.raises(Killed):
        killed.setattr("qontext.frame.workdir.shutil.rmtree", one_file)
        work.remove("checkpoints")
    assert not work.has("checkpoints") and work.names() == [] and any(tmp_path.iterdir())
    work.sweep()
    assert not any(tmp_path.iterdir())


def test_others_may_read_what_a_library_wrote_for_its_owner(tmp_path: Path) -> None:
    work = Workdir(tmp_path / "out")
    usual, mine = tmp_path / "usual", tmp_path / "mine"
    for path in (usual, mine):
        path.write_text("x")
    mine.chmod(0o600)
    with work.write("one") as path:
        path.touch(0o600)
    with work.write_folder("model") as folder:
        (folder / "weights").touch(0o600)
        (folder / "linked").hardlink_to(mine)
    modes = [(work.path / name).stat().st_mode for name in ("one", "model/weights")]
    assert modes == [usual.stat().st_mode] * 2
    assert mine.stat().st_mode & 0o777 == 0o600, "a file of someone else"
