"""Worker processes end with their parent, even if it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    text = " ".join(f"Sentence {n} is about rivers." for n in range(200))
    with (tmp_path / "docs.jsonl").open("w") as file:
        for number in range(5000):
            file.write(json.dumps({"_id": str(number), "text": text}) + "\n")
    command = [sys.executable, "-m", "qontext", "split", "docs.jsonl", "--workers", "2", "--out", "out"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
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
    """True if the process lives: a dead one that nobody has asked about yet does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
