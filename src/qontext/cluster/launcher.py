"""Processes that work on one job: started, watched until they have ended, and stopped at a signal.

`Processes` says how: ranks on this machine (`Torchrun`), ranks of a training on a Ray cluster (`ranks`), or workers there
that make parts (`on_ray`). Ctrl-C, SIGTERM and SIGHUP stop all of them in the same way.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from qontext.frame import trust
from qontext.frame.errors import QontextError
from qontext.frame.process import StopRequests

_PR_SET_PDEATHSIG = 1


class Processes(ABC):
    """The processes of a job, as the command that started it sees them."""

    message = "Stopping after this step …"
    """Shown at a signal."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Wait for news, about this long at most. False if all have ended; the error of one that failed is raised."""

    @abstractmethod
    def stop(self) -> None:
        """Let the processes save what they have, and wait until they have ended."""

    @abstractmethod
    def end(self) -> None:
        """End what still runs."""


def watch(group: Processes) -> None:
    """Wait until all processes have ended. A signal stops them and raises KeyboardInterrupt; a second one ends
    them at once."""
    try:
        hangup = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()  # not on Windows
        with StopRequests(*hangup, message=group.message) as request:
            while not request.requested and group.wait(1.0):
                pass
            if request.requested:
                group.stop()
    finally:
        group.end()


class Torchrun(Processes):
    """Ranks on this machine that run a command of qontext. They end with this process, on Linux even if it is killed.

    torchrun gives them half a minute to finish and save their step after a signal.
    """

    def __init__(self, ranks: int, words: Sequence[str], failed: QontextError) -> None:
        self.ranks, self.words, self.failed = ranks, words, failed
        self.child: subprocess.Popen[bytes] | None = None

    def _start(self) -> subprocess.Popen[bytes]:
        launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
        threads = str(max(1, (os.cpu_count() or 1) // self.ranks))
        return subprocess.Popen(
            [sys.executable, "-P", "-m", *launch, "-m", "qontext", *self.words],
            stdout=2,  # stdout is for this process's own result
            start_new_session=True,  # it receives Ctrl-C once, through this process
            preexec_fn=_stop_with_parent(),
            env={"OMP_NUM_THREADS": threads, **os.environ, "PYTHONSAFEPATH": "1", **trust.environment()},
        )

    def wait(self, seconds: float) -> bool:
        self.child = self.child or self._start()
        try:
            code = self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        if code:
            raise self.failed
        return False

    def stop(self) -> None:
        if self.child is not None:
            self.child.terminate()
            self.child.wait()

    def end(self) -> None:
        if self.child is not None and self.child.poll() is None:
            # Those of torchrun are in sessions of their own, and a signal would let them finish their step.
            below = descendants(self.child.pid)
            self.child.kill()
            for pid in below:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.child.wait()


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they started, as `ps` lists them; empty where it is missing."""
    try:
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=", "-o", "ppid="], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    parents = [(int(child), int(parent)) for child, parent in map(str.split, listed.splitlines())]
    found = [pid]
    for above in found:
        found += [child for child, parent in parents if parent == above]
    return found[1:]


def _stop_with_parent() -> Callable[[], None] | None:
    """A function for child processes, so that they are signaled when the parent dies (Linux only)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None
    return None if prctl is None else lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
