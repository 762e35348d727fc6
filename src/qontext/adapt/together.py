"""Running a recipe with several processes under torchrun; they wait for steps of a single process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qontext.frame import log, trust
from qontext.frame.errors import QontextError
from qontext.workflow.recipe import Recipe, read_recipe
from qontext.workflow.run import plan

_PR_SET_PDEATHSIG = 1


def shared_by(processes: int, recipe: Recipe) -> int:
    """The largest number of processes for which there are GPUs and which divides every batch of the recipe:
    the plan may be from another machine, or edited."""
    import torch

    if torch.cuda.is_available():
        processes = min(processes, torch.cuda.device_count())
    batches = [step.settings["batch_size"] for step in recipe.steps if "batch_size" in step.settings]
    return next(p for p in range(processes, 0, -1) if not any(batch % p for batch in batches))


def run_together(recipe: Path, steps: Path, processes: int, on: str) -> None:
    """Run the remaining steps of a recipe in this number of processes; return at once if one is enough or all
    steps are done. A signal to stop is forwarded, and the processes finish their step and save it, for which
    torchrun allows half a minute. If this process is killed, Linux signals them.
    """
    if processes < 2 or all(state == "done" for _, state, _ in plan(read_recipe(str(recipe)), steps)):
        return
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [
        sys.executable,
        "-m",
        *launch,
        "-m",
        "qontext",
        "run",
        str(recipe),
        "--out",
        str(steps),
        "--on",
        on,
    ]
    command += ["--quiet"] if not log.is_shown() else []
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    child: subprocess.Popen[bytes] | None = None
    stopped: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        if not stopped and child is not None:
            log.note("Stopping the processes after this step …")
            child.terminate()
        stopped.append(number)

    _give_back_memory()
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ()
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        child = subprocess.Popen(
            command,
            stdout=2,  # stdout is for this process's own result
            start_new_session=True,  # it receives Ctrl-C once, through this process
            preexec_fn=_stop_with_parent(),
            env={"OMP_NUM_THREADS": threads, **os.environ, **trust.environment()},
        )
        if stopped:
            child.terminate()
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped:
        raise KeyboardInterrupt
    if code:
        raise QontextError(
            f"the recipe stopped in one of {processes} processes, whose message is above",
            place=recipe,
            remedy="Run the same command again to resume; --processes 1 uses a single process.",
        )


def _stop_with_parent() -> Callable[[], None] | None:
    """A function for child processes, so that they are signaled when the parent dies (Linux only)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return None if prctl is None else lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _give_back_memory() -> None:
    """Free this process's GPU cache for the worker processes."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
