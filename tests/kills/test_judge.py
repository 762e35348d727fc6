"""`adapt --judge` that is killed while a person judges: no judgment is lost, and the verdict is that of a page that was left
alone."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import httpx
from tests.tiny import Running

from qontext.adapt.judgments import FILE, FOLDER
from qontext.serve.judge import read_votes

from .conftest import COMMANDS, Server, World, files, made_by_adapt

QUESTIONS, BEFORE = 6, 7
"""Questions to judge, and judgments before the kill."""


def test_the_judgments_are_kept(world: World, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for out in (whole, killed):
        shutil.copytree(world.whole("adapt-asked"), out)
    undisturbed = serve(world.reference, whole, "whole")
    count = judge(undisturbed)
    assert undisturbed.wait() == {0} and count > BEFORE, undisturbed.text()

    running = serve(world.disturbed, killed, "killed")
    assert judge(running, BEFORE) == BEFORE
    running.send(signal.SIGKILL)
    assert running.wait() == {-signal.SIGKILL}, running.text()
    assert len(read_votes(killed / FOLDER / "votes-judge.jsonl")) == BEFORE
    again = serve(world.disturbed, killed, "resumed")
    assert judge(again) == count - BEFORE, "no passage is asked about twice"
    assert again.wait() == {0}, again.text()

    assert (killed / FOLDER / FILE).read_bytes() == (whole / FOLDER / FILE).read_bytes()
    assert verdict(killed) == verdict(whole) and verdict(whole)["queries"]["judged"] == QUESTIONS
    assert made_by_adapt(killed) == made_by_adapt(whole)
    assert files(killed) == files(whole)
    assert files(world.disturbed.temporary) == []


def serve(server: Server, out: Path, name: str) -> Running:
    argv = [*shlex.split(COMMANDS["adapt-asked"]), "--judge", str(QUESTIONS), "--out", str(out)]
    return server.launch({"argv": argv}, out.with_name(f"{name}.said"))


def judge(running: Running, most: int | None = None) -> int:
    """Judge passages on the page, by their keys; returns how many, at most that many."""
    link = None
    while link is None:
        assert not running.ended(), running.text()
        time.sleep(0.05)
        link = re.search(r"http://\S+", running.text()) if running.outputs[0].exists() else None
    judged = 0
    with httpx.Client(timeout=60, transport=httpx.HTTPTransport(retries=5)) as browser:
        while judged != most:
            pair = re.search(r'name="pair" value="(\w+)"', browser.get(link[0]).text)
            if pair is None:
                break
            vote = {"pair": pair[1], "verdict": "low" if int(pair[1], 16) % 3 else "high"}
            assert browser.post(link[0], data=vote).status_code == 303
            judged += 1
    return judged


def verdict(out: Path) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((out / "adapted.json").read_text())["verdict"]
    return about
