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


@contextlib.contextmanager
def progress(
    what: str, total: float | None, unit: str = "", earlier: float = 0.0
) -> Iterator[Callable[..., None]]:
    """A progress bar with rate and ETA on a terminal, else a line every half a minute; yields `advance(amount)`, or
    `advance(amount, "additional text")`. What advances may say that there is another total, `advance(amount, total=…)`, or
    that some of it is no work, `advance(amount, skipped=…)`. `earlier` was done before an interruption and says nothing
    about the rate.
    """
    if not is_shown():
        yield lambda *amounts, **changes: None
        return
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
    is_live = sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not is_live) as bar:
        task = bar.add_task(what, total=total, completed=int(earlier), rate="", suffix="", visible=False)
        started = shown = time.monotonic()
        done = 0.0

        def advance(
            amount: float, suffix: str = "", *, total: float | None = None, skipped: float = 0.0
        ) -> None:
            nonlocal done, shown
            done += amount
            total = total or bar.tasks[0].total
            total = total - skipped if total else total
            now = time.monotonic()
            rate = _rate(done, now - started, unit)
            bar.update(task, advance=amount, visible=now - started > 2, rate=rate, total=total)
            if suffix:
                bar.update(task, suffix=suffix)
            if not is_live and now - shown > BETWEEN:
                shown = now
                left = (total or 0) - earlier - done
                note(
                    f"{what}: {earlier + done:,.0f}{f' of {total:,.0f}' if total else ''} {unit}, {rate}"
                    + (f", {duration((now - started) / done * left)} left" if total and done else "")
                    + (f", {suffix}" if suffix else "")
                )

        yield advance


BETWEEN = 30
"""Seconds between two lines of progress in a log file."""


def _rate(done: float, elapsed: float, unit: str) -> str:
    return f"{done / elapsed:,.{0 if done > 10 * elapsed else 2}f} {unit}/s" if elapsed > 0 else ""


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
    if not is_shown():
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
