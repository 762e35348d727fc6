"""The plan of adapt: kept by the run and by the one that resumes, changed with the request, read with care."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapt.calls import adapt
from typer.testing import CliRunner

from qontext import api, cli
from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.retrieve.directory import read_adapted
from qontext.retrieve.searcher import Searcher


def start_and_kill(command: list[str], out: Path, how: signal.Signals) -> subprocess.Popen[bytes]:
    """Start the command, and send the signal when pre-training begins."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    while process.poll() is None and not (out / "steps" / "pretrain").exists():
        time.sleep(0.01)
    process.send_signal(how)
    return process


def test_a_plan_is_kept_by_the_real_run_a_kill_and_the_run_that_resumes(
    reports: Path, small_encoder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "made"
    planned = adapt(reports, out, small_encoder, dry_run=True)
    assert not (out / "steps").exists()
    assert b"[pretrain]" in (out / "recipe.toml").read_bytes()
    assert planned["expected_seconds"] == pytest.approx(planned["expected"], abs=0.1)
    plan = {name: (out / name).read_bytes() for name in ("plan.json", "recipe.toml")}
    command = [sys.executable, "-m", "qontext", "adapt", str(reports), "--out", str(out), "--budget", "90s"]
    start_and_kill([*command, "--encoder", str(small_encoder)], out, signal.SIGKILL).wait()
    assert (out / "steps" / "pretrain").exists() and not (out / "adapted.json").exists()
    # Planning something else leaves a run under way alone.
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    adapt(reports, out, small_encoder, budget="10m", dry_run=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert adapt(reports, out, small_encoder)["system"]
    assert {name: (out / name).read_bytes() for name in plan} == plan


def test_a_dry_run_leaves_a_finished_result_alone(adapted: Any, small_encoder: Path) -> None:
    before = {path: path.read_bytes() for path in adapted.out.glob("*.*") if path.is_file()}
    planned = adapt(adapted.documents, adapted.out, small_encoder, budget="10m", dry_run=True)
    assert planned["steps"] > 0
    assert {path: path.read_bytes() for path in adapted.out.glob("*.*") if path.is_file()} == before


def test_a_finished_result_keeps_its_settings(
    write_documents: Callable[..., Path],
    small_encoder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An update without the options of the first run is an update; one without their files is `refresh`."""
    documents = [
        {"_id": f"d{n}", "title": "", "text": f"Room {n} has a lamp of {n} candles."} for n in range(5)
    ]
    labels = tmp_path / "labels.jsonl"
    rows = [{"query": f"which room has {n} candles", "document": f"d{n}"} for n in range(5)]
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "made"
    first = adapt(write_documents(documents), out, small_encoder, labels=labels, seed=7)
    assert first["labels"] == {"test": 5}, "nothing was trained, so all labels measure"
    again = CliRunner().invoke(cli.app, ["adapt", str(write_documents(documents)), "--out", str(out)])
    assert f"Using the settings recorded in {out}: --labels {labels}, --budget 90s, --seed 7." in again.stderr
    assert again.exit_code == 0 and "another request" not in again.stderr
    labels.unlink()
    documents[0]["text"] = "Room 0 is dark."
    with pytest.raises(QontextError, match="cannot find the labels of this directory"):
        api.adapt(write_documents(documents), out=out)
    assert api.refresh(out)["encoded_now"] == 1
    assert read_adapted(out)["verdict"] == json.loads(json.dumps(first["verdict"]))
    capsys.readouterr()
    log.show(log.NOTE)
    api.adapt(write_documents(documents), out=out, seed=8, labels=None, budget="2m", dry_run=True)
    assert "budget was '90s' and is now '2m'; seed was 7 and is now 8" in capsys.readouterr().err


def test_another_budget_makes_another_plan_and_says_so(
    reports: Path, small_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapt(reports, tmp_path / "made", small_encoder, dry_run=True)
    plan = (tmp_path / "made" / "plan.json").read_bytes()
    command = ["adapt", str(reports), "--encoder", str(small_encoder), "--out", str(tmp_path / "made")]
    done = CliRunner().invoke(cli.app, [*command, "--budget", "10m", "--dry-run"], catch_exceptions=False)
    assert "has a plan for another request: budget was '90s' and is now '10m'" in done.stderr
    assert (tmp_path / "made" / "plan.json").read_bytes() != plan


def test_a_gigabyte_is_planned_from_a_sample(small_encoder: Path, tmp_path: Path) -> None:
    line = json.dumps({"_id": "@", "title": "A report", "text": "The lamp was mended by the keeper. " * 25})
    block = "".join(line.replace("@", str(n)) + "\n" for n in range(10_000)).encode()
    with (tmp_path / "docs.jsonl").open("wb") as file:  # ids come again, but only the beginning is read
        file.writelines([block] * 2)
        file.truncate(110 * len(block))
    assert (tmp_path / "docs.jsonl").stat().st_size > 10**9
    planned = adapt(tmp_path / "docs.jsonl", tmp_path / "made", small_encoder, dry_run=True)
    assert 0.95e6 < planned["passages"] < 1.2e6
    assert planned["pool"] < planned["passages"]
    assert any("evaluated on" in note for note in planned["notes"])


def test_a_moved_tree_goes_on_with_its_plan(
    reports: Path, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan names its inputs as they were named; the same inputs elsewhere are found under their new names."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    reports.rename(before / "docs.jsonl")
    shutil.copytree(small_encoder, before / "encoder")
    monkeypatch.chdir(before)
    adapt(Path("docs.jsonl"), Path("made"), Path("encoder"), budget="2m", dry_run=True)
    recipe = (before / "made" / "recipe.toml").read_text()
    before.rename(after)
    monkeypatch.chdir("/")
    result = adapt(after / "docs.jsonl", after / "made", after / "encoder", budget="2m")
    moved = recipe.replace("docs.jsonl", f"{after}/docs.jsonl").replace('"encoder"', f'"{after}/encoder"')
    assert (after / "made" / "recipe.toml").read_text() == moved
    assert Searcher(after / "made").search("storm", k=1) and result["system"]


def test_a_damaged_plan_is_told(reports: Path, small_encoder: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    adapt(reports, out, small_encoder, dry_run=True)
    whole = json.loads((out / "plan.json").read_text())
    wrong: list[Any] = [
        None,
        [],
        {},
        {**whole, "claim": {**whole["claim"], "inputs": {}}},
        {**whole, "claim": []},
        {**whole, "request": {}},
    ]
    wrong += [{**whole, "plan": {**whole["plan"], "steps": value}} for value in (None, -1, "many")]
    wrong += [{**whole, "request": {**whole["request"], "splits": 5}}]
    for text in ("", "{", *map(json.dumps, wrong)):
        (out / "plan.json").write_text(text)
        with pytest.raises(QontextError, match=r"plan\.json: damaged: .*Remove it to create a new plan"):
            adapt(reports, out, small_encoder)
