"""Under torchrun's environment, a stage that is not distributed is run by rank 0 and awaited by the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

# A stage that says who runs it; rank 0 waits for a file, so that the test decides when it is over.
SCRIPT = textwrap.dedent("""
    import os, sys, time
    from pathlib import Path
    from qontext.frame import execution, stages
    from qontext.frame.config import StageConfig

    class Settings(StageConfig):
        word: str = "a"

    def run(settings, work):
        with Path("ran").open("a") as file:
            file.write(os.environ["RANK"])
        if os.environ["RANK"] == "0":
            while not Path("go").exists():
                time.sleep(0.01)
            with work.write("part.txt") as path:
                path.write_text(settings.word)
        return {"words": 1}

    stage = stages.Stage("one", Settings, run, "", distributed=sys.argv[1] == "together")
    artifact = execution.execute(stage, Settings(), Path("out"))
    print(artifact.digest)
""")


def start(folder: Path, rank: int, mode: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }
    command = [sys.executable, "-c", SCRIPT, mode]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(condition: object, *processes: subprocess.Popen[str]) -> None:
    while not condition():  # type: ignore[operator]
        for process in processes:
            assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.parametrize("first", [0, 1])
def test_rank_0_alone_runs_it_and_both_return_the_artifact(tmp_path: Path, first: int) -> None:
    ranks = [start(tmp_path, rank, "apart") for rank in (first, 1 - first)]
    wait_for((tmp_path / "ran").exists, *ranks)
    time.sleep(0.5)  # the other rank has time to make a mistake
    assert all(rank.poll() is None for rank in ranks)
    (tmp_path / "go").touch()
    outputs = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    digest = json.loads((tmp_path / "out" / "meta.json").read_text())["digest"]
    assert [out for out, _ in outputs] == [f"{digest}\n"] * 2
    assert (tmp_path / "ran").read_text() == "0"


def test_ranks_of_a_distributed_stage_work_together(tmp_path: Path) -> None:
    ranks = [start(tmp_path, rank, "together") for rank in (0, 1)]
    wait_for(lambda: (tmp_path / "ran").exists() and len((tmp_path / "ran").read_text()) == 2, *ranks)
    (tmp_path / "go").touch()
    outputs = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert sorted((tmp_path / "ran").read_text()) == ["0", "1"]


def test_what_is_done_is_not_done_again_by_any_rank(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    for _ in range(2):
        ranks = [start(tmp_path, rank, "apart") for rank in (0, 1)]
        assert [rank.wait() for rank in ranks] == [0, 0]
    assert (tmp_path / "ran").read_text() == "0"
