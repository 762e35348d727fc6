"""`serve --refresh` and `--watch`: the served directories follow their documents while questions are answered.

Whether something changed is looked at in a thread; the next index is built by a process of its own, so that encoding
does not delay answers. Once `adapted.json` names another index, whoever built it, the new systems are opened beside the old
ones and replace them at once. A request that has begun keeps the systems it began with.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from qontext.adapt.follow import has_changed, watched
from qontext.frame import log, trust
from qontext.frame.errors import QontextError, missing_extra
from qontext.retrieve.ask.prepared import is_cached
from qontext.retrieve.directory import ADAPTED, index_of, is_adapted
from qontext.serve.service import Service
from qontext.serve.systems import ServedSystem

_UNITS = {"s": 1, "m": 60, "h": 3600}
SETTLE_MS = 500
"""Milliseconds of silence after a change, before it is looked at: files are written in pieces."""


def seconds_of(text: str) -> float:
    """'60s', '5m', '1h' or seconds → seconds."""
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        seconds = 0
    if not 0.1 <= seconds <= 366 * 86_400:
        raise QontextError(f"{text!r} is not a length of time", remedy="Use a value such as 60s, 5m or 1h.")
    return seconds


def changes_what_is_served(roots: Sequence[Path]) -> Callable[[Any, str], bool]:
    """The filter of watched files: documents, and in a served directory what says which index is searched. Other files there
    are those of `refresh` itself."""
    from watchfiles import DefaultFilter

    usual, served = DefaultFilter(), {root.resolve() for root in roots}
    places = [place.resolve() for root in roots for place in watched(root)]
    inside = [place for place in places if any(place.is_relative_to(root) for root in served)]

    def matters(change: Any, path: str) -> bool:
        file = Path(path).resolve()
        is_made = any(file.is_relative_to(root) for root in served)
        is_document = not is_made or any(file.is_relative_to(place) for place in inside)
        return usual(change, path) and (is_document or (file.parent in served and file.name == ADAPTED))

    return matters


class Refresher(threading.Thread):
    """Looks for changes until it is stopped.

    Args:
        service: Whose systems are replaced.
        roots: The directories of `adapt` among the served ones.
        open_all: Opens all served directories again.
        every: Seconds between two looks; None to wait for the system's word that a file was written.
    """

    def __init__(
        self,
        service: Service,
        roots: Sequence[Path],
        open_all: Callable[[], list[ServedSystem]],
        every: float | None,
    ) -> None:
        super().__init__(name="qontext-refresh", daemon=True)
        self.service, self.roots, self.open_all, self.every = service, roots, open_all, every
        self.done = threading.Event()
        self._problems: dict[Path, str] = {}

    def run(self) -> None:
        for _ in self._moments():
            try:
                self.look()
            except Exception as error:  # the server keeps answering with what it has
                log.warn(f"the served directories were not refreshed: {error}")

    def look(self) -> bool:
        """Index what has changed, and serve what is new; returns whether something is."""
        for root in self.roots:
            if has_changed(root):
                self._index(root)
        if self._served() == {index_of(root) for root in self.roots}:
            return False
        self.service.replace(self.open_all())
        names = sorted(folder.name for folder in self._served())
        log.note(f"Serving what changed: {', '.join(names)}.")
        return True

    def _served(self) -> set[Path]:
        """The indexes of the directories of `adapt` that are open, whatever is on disk by now."""
        opened = (system.directory for system in self.service.systems.values())
        return {one.folder for one in opened if one is not None}

    def stop(self) -> None:
        self.done.set()
        if self.is_alive():
            self.join(timeout=10)

    def _moments(self) -> Iterator[None]:
        if self.every is not None:
            while not self.done.wait(self.every):
                yield
            return
        from watchfiles import watch

        yield  # the first look records the sources
        places = [place for root in self.roots for place in (*watched(root), root)]
        how: dict[str, Any] = {"debounce": SETTLE_MS, "recursive": True, "yield_on_timeout": True}
        how["watch_filter"] = changes_what_is_served(self.roots)
        is_first = True
        for changes in watch(*places, stop_event=self.done, **how):
            if changes or is_first:  # and what changed before it was watched
                yield
            is_first = False

    def _index(self, root: Path) -> None:
        """Run `qontext refresh`; a problem is reported once, not at every look."""
        words = [] if is_cached(root) else ["--words"]  # no vectors where nobody asked for them
        done = subprocess.run(
            [sys.executable, "-P", "-m", "qontext", "refresh", str(root), "--quiet", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, **trust.environment()},
            check=False,
        )
        said = done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
        if said and self._problems.get(root) != said:
            log.warn(f"{root} is served as it was: {said.removeprefix('error: ')}")
        self._problems[root] = said


def refresher(
    service: Service,
    directories: Sequence[str],
    open_all: Callable[[], list[ServedSystem]],
    *,
    refresh: str | None,
    watch: bool,
) -> Refresher | None:
    """The thread that `--refresh` and `--watch` ask for."""
    if refresh is None and not watch:
        return None
    roots = [Path(path) for path in dict.fromkeys(directories) if is_adapted(path)]
    if not roots:
        raise QontextError(
            "only directories of adapt know their documents", remedy="Remove --refresh and --watch."
        )
    if watch:
        from importlib.util import find_spec

        if find_spec("watchfiles") is None:
            raise missing_extra("watchfiles", "watch", "--watch")
    return Refresher(service, roots, open_all, None if watch else seconds_of(refresh or ""))
