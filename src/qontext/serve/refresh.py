"""`serve --refresh`: the served directories follow their documents while questions are answered.

Whether something changed is looked at in a thread; the next index is built by a process of its own, so that encoding
does not delay answers. Once `adapted.json` names another index, whoever built it, the new systems are opened beside the old
ones and replace them at once. A request that has begun keeps the systems it began with.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from qontext.adapt.follow import has_changed
from qontext.frame import log, trust
from qontext.retrieve.ask.prepared import is_cached
from qontext.retrieve.directory import index_of
from qontext.retrieve.open import AdaptedFolder
from qontext.serve.service import Service
from qontext.serve.systems import ServedSystem


class Refresher(threading.Thread):
    """Looks for changes until it is stopped.

    Args:
        service: Whose systems are replaced.
        roots: The directories of `adapt` among the served ones.
        open_all: Opens all served directories again.
        every: Seconds between two looks.
    """

    def __init__(
        self,
        service: Service,
        roots: Sequence[Path],
        open_all: Callable[[], list[ServedSystem]],
        every: float,
    ) -> None:
        super().__init__(name="qontext-refresh", daemon=True)
        self.service, self.roots, self.open_all, self.every = service, roots, open_all, every
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(self.every):
            try:
                self.look()
            except Exception as error:  # the server keeps answering with what it has
                log.warn(f"the served directories were not refreshed: {error}")

    def look(self) -> bool:
        """Index what has changed, and serve what is new; returns whether something is."""
        for root in self.roots:
            if has_changed(root):
                _refresh(root)
        if self._served() == {index_of(root) for root in self.roots}:
            return False
        self.service.replace(self.open_all())
        log.note(f"Serving what changed: {', '.join(sorted(folder.name for folder in self._served()))}.")
        return True

    def _served(self) -> set[Path]:
        """The indexes of the directories of `adapt` that are open, whatever is on disk by now."""
        opened = (system.collection for system in self.service.systems.values())
        return {one.folder for one in opened if isinstance(one, AdaptedFolder)}

    def stop(self) -> None:
        self.done.set()
        if self.is_alive():
            self.join(timeout=10)


def _refresh(root: Path) -> None:
    """Run `qontext refresh`; with a problem, the directory is served as it was."""
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
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
        log.warn(f"{root} is served as it was: {said}")
