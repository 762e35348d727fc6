"""A recipe run by several processes under torchrun: what one of them does alone, the others wait for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from qontext import log
from qontext.errors import QontextError
from qontext.workflow.recipe import plan, read_recipe


def run_together(recipe: Path, steps: Path, processes: int) -> None:
    """Run what is not done of a recipe in so many processes; nothing, if one is enough or all is done.

    A request to stop is passed on, and the processes' own end awaited: they save what they have.
    """
    import torch

    if torch.cuda.is_available():  # a plan may come from a machine with more
        processes = min(processes, torch.cuda.device_count())
    if processes < 2 or all(state == "done" for _, state, _ in plan(read_recipe(str(recipe)), steps)):
        return
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, "-m", *launch, "-m", "qontext", "run", str(recipe), "--out", str(steps)]
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    child = subprocess.Popen(
        command,
        stdout=2,  # stdout is for this process' own result
        start_new_session=True,  # a Ctrl-C reaches it once, through this process
        env={"OMP_NUM_THREADS": threads, **os.environ},
    )
    stopped: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        if not stopped:
            log.note("Stopping the processes after their step …")
            child.terminate()
        stopped.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
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
