"""Errors a user can act on: what is wrong, where, and what to do about it, in one sentence each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class QontextError(ValueError):
    """Bad input, told kindly. The command line prints it without a traceback and exits with 2.

    `place` is where the problem stands (``docs.jsonl:17``), `remedy` what to do next.
    """

    def __init__(self, message: str, *, place: str | Path | None = None, remedy: str | None = None) -> None:
        self.message, self.place, self.remedy = message, place, remedy
        head = f"{place}: {message}" if place is not None else message
        super().__init__(f"{head.rstrip('.')}. {remedy}" if remedy else head)


def choose(name: str, valid: Iterable[str], what: str) -> str:
    """`name` if it is one of `valid`; else an error that lists them and guesses which was meant."""
    names = list(valid)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    raise QontextError(f"unknown {what} {name!r}", remedy=f"Choose from: {', '.join(names)}.{guess}")


def missing_extra(package: str, extra: str, why: str) -> QontextError:
    """The error for an optional package that is not installed, with the command that installs it."""
    return QontextError(f"{why} needs the package {package}", remedy=f"Run: pip install 'qontext[{extra}]'")
