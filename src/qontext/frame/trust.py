"""Trust in files. A recipe, an index or a directory of `adapt` may come from anyone, so what it names is only
obeyed as far as that is safe: to run code, to send data or a secret to a host, or to join a cluster, needs the user's word.

The user's word is

- a value on the command line or in a Python call (`give`), or
- ``--trust``, or ``trust=True``, for one command (`trusting`).

Whatever runs code or opens a connection calls `require` itself, so that a file that nobody looked into is refused, too.
Processes that Qontext starts inherit the decision (`decision`, `inherit`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qontext.frame import log
from qontext.frame.errors import QontextError

VARIABLE = "QONTEXT_TRUSTED"
"""The environment variable by which a process that is started here inherits the decision."""
PREFIX = "QONTEXT_"
"""Of environment variables that a file may name."""
_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*(?=:|$)")


@dataclass(frozen=True)
class Demand:
    """Something that a file asks for: what it `does`, as a verb phrase, and the `words` that mean it on the command line."""

    does: str
    words: tuple[str, ...]
    only_by: str = ""
    """The way to name it, if --trust is not enough."""
    code: str = ""
    """The ``module:Class`` that it runs."""

    def __post_init__(self) -> None:
        # Without control characters, which could hide a part of a question.
        shown = "".join(character if character.isprintable() else "�" for character in self.does)
        object.__setattr__(self, "does", shown)

    @property
    def sends(self) -> bool:
        """True if data leaves this process."""
        return not self.code


class Untrusted(QontextError):
    """A file asks for something that the user did not allow."""


class _Decision:
    """The permissions of this process: the words that the user gave, and whether files are trusted."""

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.all = False


decided = _Decision()


def give(values: Any) -> None:
    """Count these values, and those in lists and tables, as the user's own words."""
    if isinstance(values, str):
        decided.words.add(values)
        if code := _CODE.match(values):
            decided.words.add(code[0])
    elif isinstance(values, os.PathLike):
        give(os.fspath(values))
    elif isinstance(values, Mapping):
        give(values.values())
    elif isinstance(values, Iterable) and not isinstance(values, bytes):
        for value in values:
            give(value)


def is_given(word: str) -> bool:
    """True if the user gave this word."""
    return word in decided.words


def is_named(path: str) -> bool:
    """True if the user named this file, in any spelling, or a folder that it is in."""
    place = _absolute(path)
    return any(place.is_relative_to(_absolute(word)) for word in decided.words if word and "\0" not in word)


def is_elsewhere(path: str, folder: Path) -> bool:
    """True if a path is outside of a folder and the current one, or a hidden one, and of no installed package."""
    real = Path(path).expanduser().resolve()
    installed = (entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages")))
    if any(real.is_relative_to(Path(entry).resolve()) for entry in installed):
        return False
    here = [Path.cwd(), folder.resolve()]
    inside = next((real.relative_to(f) for f in here if real.is_relative_to(f)), None)
    return inside is None or any(part.startswith(".") for part in inside.parts)


def say_elsewhere(paths: Iterable[str], folder: Path) -> None:
    """Name the files elsewhere that a folder makes a command read, unless the user named them."""
    for path in paths:
        if not is_named(path) and is_elsewhere(path, folder):
            log.warn(f"reading {path}, which {folder} names and you did not")


def _absolute(path: str) -> Path:
    """The path from the root, without ``..``; nothing is looked up."""
    return Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111 -- it may be no path at all


@contextlib.contextmanager
def trusting(is_trusted: bool = True) -> Iterator[None]:
    """Files are trusted meanwhile."""
    before, decided.all = decided.all, decided.all or is_trusted
    try:
        yield
    finally:
        decided.all = before


def decision() -> list[Any]:
    """The decision as plain values, for another process."""
    return [decided.all, sorted(decided.words)]


def inherit(made: Any) -> None:
    """Take over the decision of the process that started this one."""
    is_trusted, words = made
    decided.all = decided.all or bool(is_trusted)
    give(words)


def environment() -> dict[str, str]:
    """The environment that a child process inherits."""
    return {VARIABLE: json.dumps(decision())}


def require(demands: Iterable[Demand], place: Path | str | None = None) -> None:
    """Raise `Untrusted` unless the user allowed all of this. `place` is the file that asks."""
    missing = [demand for demand in demands if not all(map(is_given, demand.words))]
    if hard := next((demand for demand in missing if demand.only_by), None):
        raise Untrusted(f"it asks to {hard.does}", place=place, remedy=hard.only_by)
    if missing and not decided.all:
        what = "; ".join(dict.fromkeys(demand.does for demand in missing))
        raise Untrusted(
            f"it asks to {what}",
            place=place,
            remedy="Add --trust if you trust it, or name it on the command line yourself "
            "(in Python: import its module first, or trust=True where there is such an argument).",
        )


def is_this_machine(host: str) -> bool:
    """True if a host is this machine's own address. What is sent there stays here, and a file cannot start a server."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


if VARIABLE in os.environ:
    with contextlib.suppress(ValueError, TypeError):
        inherit(json.loads(os.environ[VARIABLE]))
