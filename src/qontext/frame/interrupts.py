"""Interrupts (Ctrl-C): the command ends with exit code 130 and one line on stderr, and the same command resumes.

An interrupt becomes a KeyboardInterrupt, so that temporary files are removed and the terminal is restored. A library
may swallow the exception or turn it into another one, so the request is also remembered: `check` raises it again.
An interrupt in the middle of an import ends the process at once: compiled modules abort or print tracebacks when an
exception passes through their initialization.

This module imports little, because nothing protects the process before it is imported.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from qontext.frame import launch

EXIT_CODE = 130
SENTENCE = "Interrupted. Finished parts are kept; run the same command again to resume."

SENTENCE_OF_CALL = "Interrupted. Finished parts are kept; make the same call again to resume."

_requested = _shown = False


def command(action: Callable[[], None]) -> None:
    """Run a whole command, from the first import to its exit code."""
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # otherwise the caller ignores it, as nohup does
        signal.signal(signal.SIGINT, _interrupt)
        # Where an exception would be lost (a destructor, a callback) or nothing would catch it.
        sys.unraisablehook, sys.excepthook = _unraisable, _uncaught
    try:
        action()
    finally:
        if _requested:
            end()


def check() -> None:
    """Raise the interrupt that was requested earlier, if a library swallowed it."""
    if _requested:
        raise KeyboardInterrupt


def tell() -> None:
    """Print the line once, on rank 0 only."""
    global _shown
    if not _shown and launch.speaks():
        _shown = True
        show_cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar may have hidden it
        os.write(2, f"{show_cursor}{SENTENCE}\n".encode())


def end() -> NoReturn:
    """Exit the process now. Incomplete files have temporary names, and the next start removes them."""
    try:
        tell()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except Exception:
        pass  # a closed pipe, or an interrupt in the middle of a write to the same stream
    os._exit(EXIT_CODE)


@contextlib.contextmanager
def in_call() -> Iterator[None]:
    """Wraps a call from Python: a script that does not catch the KeyboardInterrupt ends with one line, not a traceback."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not error.args:
            error.args = (SENTENCE_OF_CALL,)
        if sys.excepthook is not _uncaught:  # a command's
            sys.excepthook = functools.partial(_ended, sys.excepthook)
        raise


def _ended(before: Callable[..., Any], kind: type[BaseException], error: BaseException, *trace: Any) -> None:
    if kind is not KeyboardInterrupt or error.args != (SENTENCE_OF_CALL,):
        before(kind, error, *trace)
    elif launch.speaks():
        os.write(2, f"{SENTENCE_OF_CALL}\n".encode())


class StopFlag:
    requested = False


_current = StopFlag()


def stop() -> None:
    """Request, from another thread, that the current step is finished and saved, as the first signal does."""
    _current.requested = True


class StopRequests:
    """Inside this context, SIGINT and SIGTERM set a flag, so that the current step is finished and saved
    first. A second signal takes effect at once. On exit, a pending request raises KeyboardInterrupt."""

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
            log.note("Stopping after this step …")

        if threading.current_thread() is threading.main_thread():  # other threads receive no signals
            for number in (signal.SIGINT, signal.SIGTERM):
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
        end()
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
        end()
    sys.__unraisablehook__(unraisable)


def _uncaught(*error: Any) -> None:
    if _requested:
        end()
    sys.__excepthook__(*error)
