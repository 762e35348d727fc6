"""Several real processes write one directory: nothing is lost, done twice or described too early."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from qontext.frame import artifacts
from qontext.frame.errors import QontextError
from qontext.frame.process import share

# A stage of ten parts. A part named in $SLOW takes until the process is killed.
STAGE = textwrap.dedent("""
    import os, sys, time
    from pathlib import Path
    from qontext.frame import execution, stages
    from qontext.frame.parts import Parts, PartsConfig, slices

    class Settings(PartsConfig):
        word: str = "a"

    class Ten(Parts):
        def plan(self):
            return slices(10, 1, lambda number: f"part-{number}.txt")

        def make(self, part, content):
            with self.work.write(part.name) as path:
                path.write_text(self.config.word * part.number)
                print("writing", part.number, flush=True)
                while os.environ.get("SLOW") == str(part.number):
                    time.sleep(0.01)
            with Path(os.environ["MADE"]).open("a") as made:
                made.write(f"{part.number}\\n")
            return {}

        def finish(self, made):
            return {"parts": len(made.parts)}

    STAGE = stages.Stage("ten", Settings, Ten, "")
    if __name__ == "__main__":
        word, shard, out, *rest = sys.argv[1:]
        execution.execute(STAGE, Settings(word=word, shard=shard or None), Path(out), overwrite=bool(rest))
""")


@pytest.fixture
def start(tmp_path):
    """Start a process of the stage: start(shard, word=..., overwrite=..., **environment)."""
    (tmp_path / "ten.py").write_text(STAGE)
    (tmp_path / "made").write_text("")

    def process(shard, *, word="a", overwrite=False, **environment):
        command = [sys.executable, "ten.py", word, shard, "out", *(["x"] if overwrite else [])]
        environment = {**os.environ, "MADE": str(tmp_path / "made"), **environment}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)  # fmt: skip

    return process


def parts_made(tmp_path):
    return sorted(map(int, (tmp_path / "made").read_text().split()))


def test_shards_started_together_make_every_part_once(start, tmp_path):
    processes = [start(f"{i}/4") for i in range(4)]
    for process in processes:
        assert process.wait() == 0, process.stderr.read()
    assert parts_made(tmp_path) == list(range(10))
    artifact = artifacts.open_artifact(tmp_path / "out")
    assert artifact.summary == {"parts": 10} and not artifact.verify()


def test_the_directory_is_not_finished_while_a_shard_is_missing(start, tmp_path):
    assert start("0/2").wait() == 0
    with pytest.raises(QontextError, match="not finished"):
        artifacts.open_artifact(tmp_path / "out")
    assert start("1/2").wait() == 0
    assert len(artifacts.open_artifact(tmp_path / "out").parts()) == 10


def test_the_result_does_not_depend_on_the_number_of_shards(start, tmp_path):
    assert start("").wait() == 0
    alone = artifacts.open_artifact(tmp_path / "out").digest
    (tmp_path / "out").rename(tmp_path / "alone")
    for i in (2, 0, 1):
        assert start(f"{i}/3").wait() == 0
    assert artifacts.open_artifact(tmp_path / "out").digest == alone


def test_a_killed_shard_is_restarted_beside_a_live_one(start, tmp_path):
    live, killed = start("0/2", SLOW="8"), start("1/2", SLOW="5")
    for process, part in ((live, "8"), (killed, "5")):
        while process.stdout.readline().strip() != f"writing {part}":
            assert process.poll() is None, process.stderr.read()
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    unfinished = list((tmp_path / "out").glob(".tmp-*"))
    assert len(unfinished) == 2
    assert start("1/2").wait() == 0
    # The restarted shard removed what it left itself, and left the live one's file alone.
    assert list((tmp_path / "out").glob(".tmp-*")) == [p for p in unfinished if "0-of-2" in p.name]
    os.kill(live.pid, signal.SIGKILL)
    live.wait()
    assert start("0/2").wait() == 0
    assert parts_made(tmp_path) == list(range(10))
    assert len(artifacts.open_artifact(tmp_path / "out").parts()) == 10


def test_the_same_shard_twice_is_told_at_once(start, tmp_path):
    first = start("0/2", SLOW="2")
    while first.stdout.readline().strip() != "writing 2":
        assert first.poll() is None
    second = start("0/2")
    _, errors = second.communicate()
    assert second.returncode == 1 and "another process is writing" in errors
    first.kill()
    first.wait()


def test_overwrite_does_not_pull_the_directory_from_under_a_live_shard(start, tmp_path):
    live = start("0/2", SLOW="2")
    while live.stdout.readline().strip() != "writing 2":
        assert live.poll() is None
    other = start("1/2", word="b", overwrite=True)
    _, errors = other.communicate()
    assert other.returncode == 1 and "another process is writing" in errors
    live.kill()
    live.wait()
    assert start("1/2", word="b", overwrite=True).wait() == 0
    assert json.loads((tmp_path / "out" / "claim.json").read_text())["config"] == {"word": "b"}
    assert not (tmp_path / "out" / "part-0.txt").exists()


def test_ranks_share_and_each_returns_the_finished_artifact(start, tmp_path):
    ranks = [start("", RANK=str(i), WORLD_SIZE="3") for i in (0, 1)]
    time.sleep(1.0)
    for rank in ranks:
        assert rank.poll() is None, rank.communicate()  # they wait for the last one
    ranks.append(start("", RANK="2", WORLD_SIZE="3"))
    for rank in ranks:
        assert rank.wait() == 0, rank.stderr.read()
    assert parts_made(tmp_path) == list(range(10))
    assert len(artifacts.open_artifact(tmp_path / "out").parts()) == 10


@pytest.mark.parametrize("shard", ["4/4", "1", "a/b", "-1/3", "1/0"])
def test_a_shard_that_does_not_exist_is_refused(shard):
    with pytest.raises(QontextError, match="i/n"):
        share(shard)


def test_ranks_divide_the_share_of_their_machine(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert share("2/4") == (5, 8)
