"""adapt with two processes: the same weights as one makes, and no process outlives the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.adapt.calls import adapt

from qontext import api
from qontext.frame import trust


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_two_processes_stop_with_their_parent_and_go_on(
    reports: Path, small_encoder: Path, tmp_path: Path, how: signal.Signals
) -> None:
    children_of = "/proc/{0}/task/{0}/children"
    if how == signal.SIGKILL and not Path(children_of.format(os.getpid())).exists():
        pytest.skip("only Linux tells children that their parent was killed")
    out = tmp_path / "made"
    adapt(reports, out, small_encoder, budget="10m", dry_run=True)
    command = [sys.executable, "-m", "qontext", "adapt", str(reports), "--out", str(out), "--budget", "10m"]
    command += ["--encoder", str(small_encoder), "--processes", "2"]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)
    while process.poll() is None and not (out / "steps" / "pretrain").exists():
        time.sleep(0.01)
    launcher = Path(children_of.format(process.pid)).read_text().split() if how == signal.SIGKILL else []
    process.send_signal(how)
    process.communicate()
    assert process.returncode != 0 and (process.returncode == -signal.SIGKILL) == (how == signal.SIGKILL)
    for pid in launcher:
        assert _ends(int(pid)), "the processes live on"
        assert not (out / "steps" / "adapted-vectors" / "meta.json").exists(), "they went on to the end"
    assert not (out / "adapted.json").exists()
    # No process of the first run holds the directory.
    trust.give([str(reports), str(small_encoder)])
    assert api.run(out / "recipe.toml", out=out / "steps", until="pretrain")["steps"][-1]["summary"]["steps"]


def _ends(pid: int) -> bool:
    """True if the process ends by itself, which takes torchrun some seconds; after two minutes it is made to."""
    for _ in range(1_200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    os.kill(pid, signal.SIGTERM)
    return False


def test_two_processes_adapt_together(
    reports: Path, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QONTEXT_AUTO_PRECISION", "fp32")
    out = tmp_path / "made"
    command = [sys.executable, "-m", "qontext", "adapt", str(reports), "--out", str(out), "--budget", "10m"]
    done = subprocess.run(
        [*command, "--encoder", str(small_encoder), "--processes", "2", "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["verdict"]["scores"]["generated"]) >= {"bm25", "start", "adapted"}
    assert (out / "steps" / "recipe.toml").is_file(), "written by the processes' own 'qontext run'"
    # One process comes to the same weights.
    trust.give([str(reports), str(small_encoder)])
    alone = api.run(out / "recipe.toml", out=tmp_path / "alone", until="pretrain")
    folders = (out / "steps" / "pretrain", alone["steps"][-1]["path"], small_encoder)
    weights, same, start = (load_file(Path(folder) / "model.safetensors") for folder in folders)
    moved = [(weights[f"bert.{name}"] - start[name]).abs().max().item() for name in start if "layer" in name]
    apart = [(weights[name] - same[name]).abs().max().item() for name in weights]
    assert max(apart) < max(moved) / 5
