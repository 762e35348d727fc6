"""A recipe run by several processes under torchrun: what one of them does alone, the others wait for."""

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

from qontext import log
from qontext.errors import QontextError
from qontext.workflow.recipe import Recipe, plan, read_recipe

_PR_SET_PDEATHSIG = 1


def shared_by(processes: int, recipe: Recipe) -> int:
    """As many processes as there are GPUs for, and as divide every batch of the recipe: the plan may come from another
    machine, or have been changed."""
    import torch

    if torch.cuda.is_available():
        processes = min(processes, torch.cuda.device_count())
    batches = [step.settings["batch_size"] for step in recipe.steps if "batch_size" in step.settings]
    return next(p for p in range(processes, 0, -1) if not any(batch % p for batch in batches))


def run_together(recipe: Path, steps: Path, processes: int) -> None:
    """Run what is not done of a recipe in so many processes; nothing, if one is enough or all is done.

    A request to stop is passed on, and the processes' own end awaited: they finish their step and save it, for which
    torchrun gives them half a minute. Where this process is killed, Linux asks them in its place.
    """
    if processes < 2 or all(state == "done" for _, state, _ in plan(read_recipe(str(recipe)), steps)):
        return
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, "-m", *launch, "-m", "qontext", "run", str(recipe), "--out", str(steps)]
    command += ["--quiet"] if log.verbosity < 0 else []
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    child: subprocess.Popen[bytes] | None = None
    stopped: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        if not stopped and child is not None:
            log.note("Stopping the processes after their step …")
            child.terminate()
        stopped.append(number)

    _give_back_memory()
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ()
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        child = subprocess.Popen(
            command,
            stdout=2,  # stdout is for this process' own result
            start_new_session=True,  # a Ctrl-C reaches it once, through this process
            preexec_fn=_stop_with_parent(),
            env={"OMP_NUM_THREADS": threads, **os.environ},
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
            remedy="The same command goes on where it stopped; --processes 1 does without the others.",
        )


def _stop_with_parent() -> Callable[[], None] | None:
    """What a child does when it is born, so that it is asked to stop when its parent dies; Linux alone knows how."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return None if prctl is None else lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _give_back_memory() -> None:
    """What this process cached on the GPU while it timed the work, for the processes that do it."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
