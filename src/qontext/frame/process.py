"""This process: its rank among those that work together, and how it is interrupted.

The rank and the number of processes are those of torchrun's environment variables, which only this module reads; without
them, there is a single process.

An interrupt (Ctrl-C) ends a command with exit code 130 and one line on stderr, and the same command resumes. It becomes a
KeyboardInterrupt, so that temporary files are removed and the terminal is restored. A library may swallow the exception or
turn it into another one, so the request is also remembered: `check_interrupt` raises it again. An interrupt in the middle of
an import ends the process at once: compiled modules abort or print tracebacks when an exception passes through their
initialization.

This module imports little, because nothing protects the process before it is imported.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from qontext.frame.errors import QontextError

PAUSE = 0.2
"""Seconds between two polls of another process."""


def rank() -> int:
    """The rank of this process, from 0."""
    number = _number("RANK", 0, at_least=0)
    if number >= (count := world()):
        raise _error(f"the environment variable RANK is {number}, but WORLD_SIZE is {count}")
    return number


def speaks() -> bool:
    """True if this process shows messages: only rank 0 does."""
    return os.environ.get("RANK", "") in ("", "0")


def world() -> int:
    """The number of processes that work together."""
    return _number("WORLD_SIZE", 1, at_least=1)


def share(shard: str | None) -> tuple[int, int]:
    """(index, count): the share of a sharded stage's parts that this process writes.

    `shard` names it for independent machines (``0/4``); under torchrun, each machine's share is divided among its
    ranks.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shard or "0/1")
    if not match or int(match[1]) >= int(match[2]):
        raise _error(
            f"the shard {shard!r} is not of the form i/n with i from 0 to n-1", remedy="Example: 0/4"
        )
    return int(match[1]) * world() + rank(), int(match[2]) * world()


def wait_until(condition: Callable[[], object]) -> None:
    """Poll until another process is done."""
    while not condition():
        time.sleep(PAUSE)


def local_rank() -> int | None:
    """The local rank of this process, from 0: the number of its GPU."""
    return _number("LOCAL_RANK", 0, at_least=0) if os.environ.get("LOCAL_RANK") else None


def launch_id() -> str:
    """The id of this launch, so that ranks do not mistake the claim of an earlier launch for their own."""
    parts = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    return "/".join(os.environ.get(name, "") for name in parts)


def check_meeting_point() -> None:
    """Refuse several processes without a rendezvous address."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise _error(f"the environment variable WORLD_SIZE is {world()}, but {name} is not set")
    _number("MASTER_PORT", 0, at_least=0)


_REMEDY = "Start several processes with torchrun, or unset RANK, WORLD_SIZE and LOCAL_RANK for a single one."


def threads() -> int:
    """Threads per process from OMP_NUM_THREADS (the outermost level of a list); 0 if not set."""
    value = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) < 6 else 0


def _error(message: str, remedy: str = _REMEDY) -> QontextError:
    from qontext.frame.errors import QontextError

    return QontextError(message, remedy=remedy)


def _number(name: str, default: int, *, at_least: int) -> int:
    value = os.environ.get(name, "")
    if not value:
        return default
    # Up to nine ASCII digits: int() also accepts other digits, signs and underscores.
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) >= at_least):
        raise _error(
            f"the environment variable {name} is {value!r}, expected a whole number of at least {at_least}"
        )
    return int(value)


EXIT_CODE = 130
SENTENCE = "Interrupted. Finished parts are kept; run the same command again to resume."

_requested = _shown = False


def run_command(action: Callable[[], None]) -> None:
    """Run a whole command, from the first import to its exit code."""
    # Otherwise the caller ignores it, as nohup does.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        # Where an exception would be lost (a destructor, a callback) or nothing would catch it.
        sys.unraisablehook, sys.excepthook = _unraisable, _uncaught
    try:
        action()
    finally:
        if _requested:
            exit_interrupted()


def check_interrupt() -> None:
    """Raise the interrupt that was requested earlier, if a library swallowed it."""
    if _requested:
        raise KeyboardInterrupt


def tell_interrupt() -> None:
    """Print the line once, on rank 0 only."""
    global _shown
    if not _shown and speaks():
        _shown = True
        show_cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar may have hidden it
        os.write(2, f"{show_cursor}{SENTENCE}\n".encode())


def exit_interrupted() -> NoReturn:
    """Exit the process now. Incomplete files have temporary names, and the next start removes them."""
    try:
        tell_interrupt()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except Exception:
        pass  # a closed pipe, or an interrupt in the middle of a write to the same stream
    os._exit(EXIT_CODE)


class StopFlag:
    requested = False


_current = StopFlag()


def request_stop() -> None:
    """Request, from another thread, that the current step is finished and saved, as the first signal does."""
    _current.requested = True


class StopRequests:
    """Inside this context, SIGINT and SIGTERM set a flag, so that the current step is finished and saved
    first. A second signal takes effect at once. On exit, a pending request raises KeyboardInterrupt.

    `also` are further signals that do so, and `message` is shown at the first one.
    """

    def __init__(self, *also: signal.Signals, message: str = "Stopping after this step …") -> None:
        self.numbers, self.message = (signal.SIGINT, signal.SIGTERM, *also), message

    def __enter__(self) -> StopFlag:
        import threading

        from qontext.frame import log

        global _current
        self.flag, self.before = StopFlag(), {}
        _current = self.flag

        def request(number: int, frame: FrameType | None) -> None:
            if self.flag.requested:
                raise KeyboardInterrupt
            self.flag.requested = True
            log.note(self.message)

        if threading.current_thread() is threading.main_thread():  # other threads receive no signals
            for number in self.numbers:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self.before[number] = signal.signal(number, request)
        return self.flag

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.flag.requested and kind is None:
            raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _requested
    if _requested or _is_importing(frame):
        exit_interrupted()
    _requested = True
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _unraisable(unraisable: Any) -> None:
    if _requested:
        exit_interrupted()
    sys.__unraisablehook__(unraisable)


def _uncaught(*error: Any) -> None:
    if _requested:
        exit_interrupted()
    sys.__excepthook__(*error)
