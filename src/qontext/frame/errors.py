"""Errors that a user can fix: what is wrong, where, and the remedy, one sentence each."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

LONGEST_MESSAGE, LONGEST_PLACE, LONGEST_REMEDY = 900, 300, 600
"""Characters of each part of an error."""
_LONG = 25
"""Longer lists of names are not shown if a name is close to the unknown one."""

_NO_MEMORY = re.compile(
    "can't allocate memory|cannot allocate memory|failed to allocate memory|bad_alloc|failed to map segment",
    re.IGNORECASE,
)
"""The messages of PyTorch, the system and C++ libraries."""


class QontextError(ValueError):
    """Bad input, in one sentence. The command line prints it without a traceback and exits with 2.

    `place` is where the problem is (``docs.jsonl:17``), `remedy` what to do next. Long parts are shortened,
    because they quote names, values and replies of any length.
    """

    def __init__(self, message: str, *, place: str | Path | None = None, remedy: str | None = None) -> None:
        message = shorten(printable(message), LONGEST_MESSAGE)
        place = None if place is None else shorten(printable(place), LONGEST_PLACE)
        remedy = None if remedy is None else shorten(printable(remedy), LONGEST_REMEDY)
        self.message, self.place, self.remedy = message, place, remedy
        head = f"{place}: {message}" if place is not None else message
        super().__init__(f"{head.rstrip('.')}. {remedy}" if remedy else head)


class Unanswerable(QontextError):
    """A question about a part or a field that the collection does not have."""


def printable(text: str | Path) -> str:
    r"""The text as UTF-8 can write it. A byte of a file's name that is not UTF-8 becomes ``\xff``, in every locale."""
    text = str(text)
    try:
        if text.isascii() or text.encode():
            return text
    except UnicodeEncodeError:
        pass
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half of a pair, which JSON can escape
        return text.encode("utf-8", "backslashreplace").decode()


_CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")


def visible(text: str) -> str:
    """The text without characters that a terminal obeys: a title or a name in a file could write over what stands there,
    turn it around, or fill the clipboard."""
    return _CONTROL.sub("�", text)


def shorten(text: str, limit: int) -> str:
    """The text, or its beginning and end if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    gap = f" … ({len(text):,} characters) … "
    head = max(1, limit - len(gap)) * 2 // 3
    return text[:head] + gap + text[len(text) - max(1, limit - len(gap) - head) :]


def raise_if_out_of_memory(error: BaseException) -> None:
    """Raise the sentence for an error that says that memory ran out, which no file is to blame for."""
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError) or number == errno.ENOMEM or _NO_MEMORY.search(str(error)):
        raise QontextError(
            "out of memory",
            remedy="Close other programs, raise the limit (ulimit -v), or use a larger machine.",
        ) from None


def first_line(error: BaseException) -> str:
    """The first line of an error's message; libraries write the rest for programmers."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def choose(name: str, valid: Iterable[str], what: str) -> str:
    """`name` if it is one of `valid`; else an error that lists them and suggests the closest. Of a long list, only the
    closest are shown."""
    if isinstance(valid, Mapping) and name in valid:  # without a look at the others
        return name
    names = list(valid)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=3)
    if len(names) > _LONG and (remedy := did_you_mean(name, names)):
        raise QontextError(f"unknown {what} {name!r}", remedy=remedy)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    raise QontextError(f"unknown {what} {name!r}", remedy=f"Choose from: {', '.join(names)}.{guess}")


def did_you_mean(name: str, names: Iterable[str]) -> str | None:
    """The remedy for an unknown name that is close to some of these, whatever their case; None if it is close to none."""
    lower = {own.lower(): own for own in names}
    near = difflib.get_close_matches(name.lower(), lower, n=3)
    return f"Did you mean {' or '.join(repr(lower[own]) for own in near)}?" if near else None


def missing_extra(package: str, extra: str, why: str) -> QontextError:
    """The error for an optional package that is not installed, with the command that installs it."""
    return QontextError(f"{why} needs the package {package}", remedy=f"Run: pip install 'qontext[{extra}]'")
