"""Ranks on this machine, started by torchrun: the steps of a recipe in several processes."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

from qontext.frame import log, trust
from qontext.frame.errors import QontextError
from qontext.frame.process import StopRequests
from qontext.workflow.recipe import Recipe, demands, read_recipe
from qontext.workflow.run import plan
from qontext.workflow.tables import read_tables

_PR_SET_PDEATHSIG = 1


def shared_by(processes: int, recipe: Recipe) -> int:
    """The largest number of processes for which there are GPUs and which divides every batch of the recipe:
    the plan may be from another machine, or edited."""
    import torch

    if torch.cuda.is_available():
        processes = min(processes, torch.cuda.device_count())
    batches = [step.settings["batch_size"] for step in recipe.steps if "batch_size" in step.settings]
    return next(p for p in range(processes, 0, -1) if not any(batch % p for batch in batches))


def run_steps(recipe: Path, steps: Path, processes: int, on: str) -> None:
    """Run the remaining steps of a recipe in this number of processes; return at once if one is enough or all
    steps are done."""
    import torch

    if processes < 2 or all(state == "done" for _, state, _ in plan(read_recipe(str(recipe)), steps)):
        return
    # The processes read what this one does: `adapt` wrote the recipe.
    tables = read_tables(recipe)
    reads = {*demands(tables, recipe)} - {*demands(tables, recipe, is_foreign=False)}
    trust.give([demand.words for demand in reads])
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    quiet = [] if log.is_shown() else ["--quiet"]
    if run_ranks(processes, ["run", str(recipe), "--out", str(steps), "--on", on, *quiet]):
        raise QontextError(
            f"the recipe stopped in one of {processes} processes, whose message is above",
            place=recipe,
            remedy="Run the same command again to resume; --processes 1 uses a single process.",
        )


def run_ranks(ranks: int, words: list[str]) -> int:
    """Run a command of qontext in ranks; returns the exit code. They end with this process, on Linux even if it is killed;
    after a signal, torchrun gives them half a minute to finish and save their step."""
    threads = str(max(1, (os.cpu_count() or 1) // ranks))
    launch = [
        "-P",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        "-m",
        "qontext",
    ]
    with StopRequests(signal.SIGHUP) as request:
        child = subprocess.Popen(
            [sys.executable, *launch, *words],
            stdout=2,  # stdout is for this process's own result
            start_new_session=True,  # it receives Ctrl-C once, through this process
            preexec_fn=_stop_with_parent if sys.platform == "linux" else None,
            env={"OMP_NUM_THREADS": threads, **os.environ, "PYTHONSAFEPATH": "1", **trust.environment()},
        )
        try:
            while child.poll() is None and not request.requested:
                try:
                    child.wait(1.0)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
    return child.returncode


def _stop_with_parent() -> None:
    """Have this child process signaled when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
