"""What a person sees, and what a program that imports the package sees: messages are records of `logging`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qontext.frame import log

SPLIT = """
import sys
{setup}
from qontext import api
api.split(sys.argv[1], out=sys.argv[2])
api.split(sys.argv[1], out=sys.argv[2])
"""


def _split_from_python(tmp_path: Path, setup: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "docs.jsonl").write_text('{"id": "1", "text": "A passage."}\n')
    code = SPLIT.format(setup=setup)
    arguments = [str(tmp_path / "docs.jsonl"), str(tmp_path / "out")]
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )


def test_a_library_user_hears_nothing_of_notes(tmp_path: Path) -> None:
    done = _split_from_python(tmp_path, "")
    assert done.stdout == ""
    assert done.stderr == ""


def test_levels_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for level, expected in {
        log.SILENT: "",
        log.WARNING: "warning: w\n",
        log.NOTE: "n\nwarning: w\n",
        log.DETAIL: "d\nn\nwarning: w\n",
    }.items():
        log.show(level)
        log.detail("d")
        log.note("n")
        log.warn("w")
        log.show_table("results", {"a": 1})
        shown = capsys.readouterr()
        assert shown.err == expected
        assert bool(shown.out) == (level <= log.NOTE)


def test_warnings_only_is_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError), log.warnings_only():
        log.note("inside")
        log.warn("loud")
        raise ValueError
    log.note("after")
    assert capsys.readouterr().err == "warning: loud\nafter\n"


def test_progress_of_resumed_work_counts_the_rate_from_where_it_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, shown = [0.0], list[str]()
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(log, "note", shown.append)
    log.show(log.NOTE)
    with log.progress("training", 110, "steps", earlier=90) as advance:
        advance(0, skipped=10)
        for _ in range(2):
            now[0] += 40
            advance(4)
    assert shown == [
        "training: 94 of 100 steps, 0.10 steps/s, 1 min left",
        "training: 98 of 100 steps, 0.10 steps/s, 20 s left",
    ]
