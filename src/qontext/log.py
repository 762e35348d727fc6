"""What a person sees while something runs: notes, warnings, progress. All on stderr; stdout is for results."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

verbosity = 0
"""-2 silent, as another of several processes speaks for all, -1 quiet (warnings and errors only), 0 normal, 1 verbose."""


def note(text: str) -> None:
    """Something worth knowing."""
    if verbosity >= 0:
        print(text, file=sys.stderr)


def detail(text: str) -> None:
    """Something worth knowing when one looks closely (-v)."""
    if verbosity >= 1:
        print(text, file=sys.stderr)


def warn(text: str) -> None:
    """Something that will surprise later if it is overlooked now. Shown even when quiet."""
    if verbosity >= -1:
        print(f"warning: {text}", file=sys.stderr)


@contextlib.contextmanager
def progress(what: str, total: float | None, unit: str = "") -> Iterator[Callable[..., None]]:
    """A progress bar with rate and ETA; gives `advance(amount)`, or `advance(amount, "what to say besides")`.

    On a terminal it is a live bar; elsewhere a line every 20 seconds, so that a log file stays readable.
    Nothing is shown for work that is over within two seconds.
    """
    if verbosity < 0:
        yield lambda amount, said="": None
    elif sys.stderr.isatty():
        with _live_bar(what, total, unit) as advance:
            yield advance
    else:
        yield _line_printer(what, total, unit)


@contextlib.contextmanager
def _live_bar(what: str, total: float | None, unit: str) -> Iterator[Callable[..., None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}", style="dim"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, rate="", said="", visible=False)
        started, done = time.monotonic(), 0.0

        def advance(amount: float, said: str = "") -> None:
            nonlocal done
            done += amount
            elapsed = time.monotonic() - started
            bar.update(task, advance=amount, visible=elapsed > 2, rate=_rate(done, elapsed, unit))
            if said:
                bar.update(task, said=said)

        yield advance


def _line_printer(what: str, total: float | None, unit: str) -> Callable[..., None]:
    started = shown = time.monotonic()
    done, last = 0.0, ""

    def advance(amount: float, said: str = "") -> None:
        nonlocal done, shown, last
        done, last = done + amount, said or last
        now = time.monotonic()
        if now - shown > 20:
            shown, elapsed = now, now - started
            left = f", {duration(elapsed / done * (total - done))} left" if total and done else ""
            of = f" of {total:,.0f}" if total else ""
            line = f"{what}: {done:,.0f}{of} {unit}, {_rate(done, elapsed, unit)}{left}"
            print(f"{line}, {last}" if last else line, file=sys.stderr, flush=True)

    return advance


def _rate(done: float, elapsed: float, unit: str) -> str:
    return f"{done / elapsed:,.{0 if done > 10 * elapsed else 1}f} {unit}/s" if elapsed > 0 else ""


def duration(seconds: float) -> str:
    """90 → '1 min 30 s'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def show_table(title: str, rows: dict[str, Any]) -> None:
    """Results as two aligned columns on stdout; nested results are indented under their name."""
    if verbosity < 0:
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, show_header=False, box=None, title_justify="left", title_style="bold")
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    _add_rows(table, rows, "")
    Console(markup=False, emoji=False).print(table)


def show_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Results as a table with a heading per column on stdout."""
    if verbosity < 0:
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for name, value in (rows[0] if rows else {}).items():
        table.add_column(name, justify="right" if isinstance(value, int | float) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console(markup=False, emoji=False).print(table)


def _add_rows(table: Any, rows: dict[str, Any], indent: str) -> None:
    for name, value in rows.items():
        label = indent + name.replace("_", " ")
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
        return ", ".join(map(str, value))
    return str(value)
