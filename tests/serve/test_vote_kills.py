"""The server of a study is killed while five people vote: no acknowledged vote is lost, none counts twice.

QONTEXT_KILLS is how often it is killed (`make kills` raises it). The moments are drawn from the number of the kill.
"""

from __future__ import annotations

import contextlib
import csv
import os
import random
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from tests.serve.command import Command
from tests.serve.conftest import World

from qontext.serve.annotate import study as studies
from qontext.serve.annotate.store import FILE
from qontext.serve.annotate.study import Annotator, Study

KILLS = int(os.environ.get("QONTEXT_KILLS", "2"))

Votes = dict[tuple[str, int], str]
"""(annotator, pair) → verdict."""


@dataclass
class Ballot:
    """A study that outlives its servers, and what the voters know."""

    root: Path
    acknowledged: Votes = field(default_factory=dict)
    unanswered: Votes = field(default_factory=dict)
    """Votes on their way when a server was killed, which may be stored or not."""

    def check(self, kept: Votes) -> None:
        """Only votes without an answer may differ; from now on these are what was stored."""
        for key, verdict in self.unanswered.items():
            if kept.get(key) == verdict:
                self.acknowledged[key] = verdict
        self.unanswered.clear()
        assert kept == self.acknowledged


class Voter(threading.Thread):
    """Someone who votes at random until the server is gone. An earlier vote without an answer is sent again first."""

    def __init__(self, url: str, annotator: Annotator, pairs: list[int], seed: str, again: Votes) -> None:
        super().__init__()
        self.url, self.annotator, self.pairs, self.dice = url, annotator, pairs, random.Random(seed)
        self.again = [(pair, verdict) for (name, pair), verdict in again.items() if name == annotator.name]
        self.acknowledged: Votes = {}
        self.unanswered: Votes = {}

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=30) as client:
            while True:
                drawn = self.dice.choice(self.pairs), self.dice.choice(["high", "low"])
                pair, verdict = self.again.pop() if self.again else drawn
                try:
                    form = {"pair": pair, "verdict": verdict}
                    answer = client.post(f"/a/{self.annotator.key}", data=form)
                except httpx.HTTPError:
                    self.unanswered[self.annotator.name, pair] = verdict
                    return
                assert answer.status_code == 303
                self.acknowledged[self.annotator.name, pair] = verdict


@pytest.fixture(scope="module")
def ballot(tmp_path_factory: pytest.TempPathFactory) -> Ballot:
    return Ballot(tmp_path_factory.mktemp("ballot") / "study")


@pytest.mark.parametrize("number", range(KILLS))
def test_kills_lose_no_vote_and_count_none_twice(
    world: World, ballot: Ballot, command: Callable[..., Command], tmp_path: Path, number: int
) -> None:
    options = ("--documents", 24, "--out", ballot.root, "--port", 0)
    running = command("annotate", world / "passages", world / "queries", *options)
    url, study = running.url(), studies.read(ballot.root)
    assert study is not None
    again = dict(ballot.unanswered)
    ballot.check(served(url, study))
    voters = [
        Voter(url, one, [pair.number for pair in study.order(one)], f"{number} {one.name}", again)
        for one in study.annotators[:5]
    ]
    for voter in voters:
        voter.start()
    time.sleep(random.Random(number).uniform(0.02, 0.6))
    running.process.send_signal(signal.SIGKILL)
    running.process.wait()
    for voter in voters:
        voter.join()
        ballot.acknowledged |= voter.acknowledged
        ballot.unanswered |= voter.unanswered
    expected = Ballot(ballot.root, dict(ballot.acknowledged), dict(ballot.unanswered))
    expected.check(stored(ballot.root, tmp_path))  # in a copy: the next server repairs the file itself
    assert number or ballot.acknowledged


def served(url: str, study: Study) -> Votes:
    """The votes as the organizer downloads them; the results count them."""
    results = f"{url}/results/{study.organizer}"
    rows = csv.DictReader(httpx.get(f"{results}/pairs.csv").text.splitlines())
    names = [annotator.name for annotator in study.annotators]
    votes = {(name, int(row["pair"])): row[name] for row in rows for name in names if row[name]}
    assert httpx.get(f"{results}/results.json").json()["votes"] == len(votes)
    return votes


def stored(root: Path, folder: Path) -> Votes:
    """The votes in the file. Each is what the history says last, and a verdict is never in it twice in a row."""
    for path in root.glob(f"{FILE}*"):
        shutil.copy(path, folder)
    with contextlib.closing(sqlite3.connect(folder / FILE)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        votes = connection.execute("SELECT annotator, pair, verdict FROM votes").fetchall()
        history = connection.execute(
            "SELECT annotator, pair, verdict FROM history ORDER BY number"
        ).fetchall()
    last: Votes = {}
    for name, pair, verdict in history:
        assert last.get((name, pair)) != verdict
        last[name, pair] = verdict
    kept = {(name, pair): verdict for name, pair, verdict in votes}
    assert kept == last and len(kept) == len(votes)
    return kept
