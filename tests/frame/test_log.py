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


def test_brackets_and_colons_in_names_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    log.show_table("split → a[/b]", {"[red]name": "x[/y] :smile:"})
    log.show_rows("a[/b]", [{"[red]name": "x[/y] :smile:"}])
    shown = capsys.readouterr().out
    assert shown.count("a[/b]") == 2
    assert shown.count("[red]name") == 2
    assert shown.count("x[/y] :smile:") == 2


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


def test_a_library_user_can_redirect_messages(tmp_path: Path) -> None:
    done = _split_from_python(
        tmp_path, "import logging; logging.basicConfig(level=logging.INFO, format='%(name)s|%(message)s')"
    )
    assert done.stdout == ""
    assert "qontext|" in done.stderr
    assert "nothing to do" in done.stderr


def test_warnings_reach_a_library_user_by_default() -> None:
    code = "from qontext.frame import log; log.note('a note'); log.warn('50 % is missing')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "50 % is missing\n"


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


def test_a_message_is_shown_once_where_files_are_read_twice(capsys: pytest.CaptureFixture[str]) -> None:
    log.show(log.NOTE)
    with log.without_repeats():
        for _ in range(2):
            log.warn("left out: %s", "a.pdf")
            log.note("one")
    log.note("one")
    assert capsys.readouterr().err == "warning: left out: a.pdf\none\none\n"


def test_warnings_only_is_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError), log.warnings_only():
        log.note("inside")
        log.warn("loud")
        raise ValueError
    log.note("after")
    assert capsys.readouterr().err == "warning: loud\nafter\n"


def test_a_message_that_quotes_an_endless_id_is_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    log.show(log.NOTE)
    log.warn(f"{'x' * 100_000} is unknown")
    shown = capsys.readouterr().err
    assert len(shown) < 2_100 and shown.startswith("warning: xxx") and shown.endswith("xxx is unknown\n")


def test_progress_of_resumed_work_counts_the_rate_from_where_it_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, shown = [0.0], list[str]()
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(log, "note", shown.append)
    with log.progress("training", 100, "steps", earlier=90) as advance:
        now[0] += 30
        advance(5)
    assert shown == ["training: 95 of 100 steps, 6.0 s per step, 30 s left"]


def test_progress_does_not_count_what_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now, shown = [0.0], list[str]()
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(log, "note", shown.append)
    with log.progress("encode", 1_243, "texts") as advance:
        advance(0, skipped=1_240)
        now[0] += 30
        advance(2)
    assert shown == ["encode: 2 of 3 texts, 15 s per text, 15 s left"]


def test_progress_follows_a_total_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training whose steps are revised: never more done than there is, and no negative time."""
    now, shown = [0.0], list[str]()
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(log, "note", shown.append)
    with log.progress("training", 10, "steps") as advance:
        for _ in range(15):
            now[0] += 30
            advance(1, total=20)
    assert shown[0] == "training: 1 of 20 steps, 30 s per step, 9 min 30 s left"
    assert shown[-1] == "training: 15 of 20 steps, 30 s per step, 2 min 30 s left"


def test_progress_is_printed_where_it_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for every twentieth, not for every step of a slow machine."""
    now, shown = [0.0], list[str]()
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(log, "note", shown.append)
    with log.progress("training", 400, "steps") as advance:
        for _ in range(400):
            now[0] += 25
            advance(1)
    # After five minutes, a line is due even if little was done.
    assert len(shown) == 30 and shown[0].startswith("training: 13 of 400 steps, 25 s per step")
    shown.clear()
    with log.progress("training", 400, "steps") as advance:
        for _ in range(400):
            now[0] += 2
            advance(1)
    assert len(shown) == 20


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (59.6, "1 min"),
        (90, "1 min 30 s"),
        (180, "3 min"),
        (7_200, "2 h"),
        (8_000, "2 h 13 min"),
        (3.2, "3 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert log.duration(seconds) == text
