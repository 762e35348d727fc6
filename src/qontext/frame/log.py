"""Messages and progress for users.

Messages go to Python's `logging` under the name "qontext": a program that imports the package can silence or
redirect them as usual, and by default shows only warnings. The command line shows them on stderr, with
progress and tables of results, once it has called `show`. Stdout is for results.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from qontext.frame.errors import QontextError, shorten, visible

logger = logging.getLogger("qontext")
DETAIL, NOTE, WARNING, SILENT = logging.DEBUG, logging.INFO, logging.WARNING, logging.CRITICAL
note = logger.info
"""Log an informational message."""
detail = logger.debug
"""Log a detail (shown with -v)."""
warn = logger.warning
"""Log a warning. Shown even with --quiet."""


def say(text: str) -> None:
    """Write a line to stderr. Failures are ignored (full disk, closed terminal)."""
    with contextlib.suppress(OSError, ValueError):
        print(visible(text), file=sys.stderr, flush=True)


@contextlib.contextmanager
def results() -> Iterator[None]:
    """Wraps all writes to stdout: a failed write is an error, because results are lost."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # otherwise the interpreter tries again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        reason = os.strerror(error.errno or errno.EIO).lower()
        raise QontextError(f"cannot write to standard output: {reason}") from None


LONGEST = 2_000
"""Characters of a message: some quote ids, which may be of any length."""


class _Stderr(logging.Handler):
    """Writes to the current `sys.stderr`."""

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "warning: " if record.levelno >= WARNING else ""
        say(prefix + shorten(record.getMessage(), LONGEST))


_handler = _Stderr()


def show(level: int, messages: int = logging.NOTSET) -> None:
    """Show messages from this level on, as the command line does. `NOTE` includes progress and results. With `messages`,
    results are shown as before, and of messages only those from that level on."""
    logger.setLevel(level)
    _handler.setLevel(messages)
    logger.propagate = False
    if _handler not in logger.handlers:
        logger.addHandler(_handler)


def is_shown() -> bool:
    """True if progress and results are shown."""
    return _handler in logger.handlers and logger.isEnabledFor(NOTE)


@contextlib.contextmanager
def warnings_only() -> Iterator[None]:
    """Inside this context, notes and progress are hidden, for work that is a small part of something else."""
    level = logger.level
    logger.setLevel(max(level, WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)


_hidden: list[bool] = []


@contextlib.contextmanager
def without_results() -> Iterator[None]:
    """Inside this context, tables of results are hidden, for a command that is a part of another one."""
    _hidden.append(True)
    try:
        yield
    finally:
        _hidden.pop()


@contextlib.contextmanager
def without_repeats() -> Iterator[None]:
    """Inside this context, a message is shown once, for work that reads the same files several times."""
    earlier: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if record.levelno < NOTE:
            return True
        is_repeat = text in earlier
        earlier.add(text)
        return not is_repeat

    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)


@contextlib.contextmanager
def progress(
    what: str, total: float | None, unit: str = "", earlier: float = 0.0
) -> Iterator[Callable[..., None]]:
    """A progress bar with rate and ETA; yields `advance(amount)`, or `advance(amount, "additional text")`. What
    advances may say that there is another total, `advance(amount, total=…)`, or that some of it is no work,
    `advance(amount, skipped=…)`. `earlier` was done before an interruption and says nothing about the rate.

    On a terminal it is a live bar; elsewhere a line for every twentieth of the work, at most every 20 seconds and at least
    every 5 minutes, so that log files stay readable. Work of less than two seconds shows nothing.
    """
    if is_shown() and sys.stderr.isatty():
        with _live_bar(what, total, unit, earlier) as advance:
            yield advance
    else:
        yield _line_printer(what, total, unit, earlier)


@contextlib.contextmanager
def _live_bar(what: str, total: float | None, unit: str, earlier: float) -> Iterator[Callable[..., None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[suffix]}", style="dim"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, completed=int(earlier), rate="", suffix="", visible=False)
        started, done = time.monotonic(), 0.0

        def advance(
            amount: float, suffix: str = "", *, total: float | None = None, skipped: float = 0.0
        ) -> None:
            nonlocal done
            done += amount
            total = (total or bar.tasks[0].total or skipped) - skipped if skipped else total
            elapsed = time.monotonic() - started
            bar.update(
                task, advance=amount, visible=elapsed > 2, rate=_rate(done, elapsed, unit), total=total
            )
            if suffix:
                bar.update(task, suffix=suffix)

        yield advance


LEAST_BETWEEN, MOST_BETWEEN, SHOWN_PARTS = 20, 300, 20
"""Seconds between two lines of progress, and the parts of the work of which each has its line, if they take that long."""


def _line_printer(what: str, total: float | None, unit: str, earlier: float) -> Callable[..., None]:
    started = shown = time.monotonic()
    done, last, all_of_it, shown_done = 0.0, "", total, 0.0

    def advance(amount: float, suffix: str = "", *, total: float | None = None, skipped: float = 0.0) -> None:
        nonlocal done, shown, last, all_of_it, shown_done
        done, last, all_of_it = done + amount, suffix or last, total or all_of_it
        all_of_it = all_of_it - skipped if all_of_it else all_of_it
        now = time.monotonic()
        is_visible = done - shown_done >= (all_of_it or 0) / SHOWN_PARTS
        if now - shown > (LEAST_BETWEEN if is_visible else MOST_BETWEEN):
            shown, shown_done, elapsed = now, done, now - started
            missing = (all_of_it or 0) - earlier - done
            left = f", {duration(elapsed / done * missing)} left" if all_of_it and done else ""
            of = f" of {all_of_it:,.0f}" if all_of_it else ""
            also = f", {last}" if last else ""
            note(f"{what}: {earlier + done:,.0f}{of} {unit}, {_rate(done, elapsed, unit)}{left}{also}")

    return advance


def _rate(done: float, elapsed: float, unit: str) -> str:
    if elapsed <= 0:
        return ""
    if 0 < done < elapsed and unit.endswith("s"):  # in seconds each
        each, one = elapsed / done, unit[:-3] + "y" if unit.endswith("ies") else unit[:-1]
        return f"{each:,.{0 if each > 10 else 1}f} s per {one}"
    return f"{done / elapsed:,.{0 if done > 10 * elapsed else 1}f} {unit}/s"


def duration(seconds: float) -> str:
    """90 → '1 min 30 s', 180 → '3 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    units = (whole // 60, "min", whole % 60, "s")
    if whole >= 3600:
        units = (whole // 3600, "h", whole % 3600 // 60, "min")
    large, unit, small, smaller = units
    return f"{large} {unit}" + (f" {small} {smaller}" if small else "")


def show_line(text: str) -> None:
    """The most important line of a result, in bold, on stdout."""
    if not is_shown():
        return
    from rich.console import Console

    with results():
        Console(markup=False, emoji=False, highlight=False).print(visible(text), style="bold")


def show_table(title: str, rows: dict[str, Any]) -> None:
    """Results as two aligned columns on stdout; nested results are indented under their name."""
    if not is_shown() or _hidden:
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=visible(title), show_header=False, box=None, title_justify="left", title_style="bold")
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    _add_rows(table, rows, "")
    with results():
        Console(markup=False, emoji=False).print(table)


def show_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Results as a table with a heading per column on stdout."""
    if not is_shown():
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=visible(title), title_justify="left", title_style="bold")
    for name, value in (rows[0] if rows else {}).items():
        table.add_column(
            name.replace("_", " "),
            justify="right" if isinstance(value, int | float) else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    with results():
        Console(markup=False, emoji=False).print(table)


def _add_rows(table: Any, rows: dict[str, Any], indent: str) -> None:
    for name, value in rows.items():
        label = indent + (
            visible(name) if ":" in name else visible(name).replace("_", " ")
        )  # the name of a class is shown as it is
        if isinstance(value, dict):
            table.add_row(label, "")
            _add_rows(table, value, indent + "  ")
        else:
            table.add_row(label, _cell(value))


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 1 else f"{value:,.5g}"
    if isinstance(value, list | tuple):
        return visible(", ".join(map(str, value)))
    return visible(str(value))
