"""Folders for temporary files, beside the result instead of in the system's temporary folder."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from qontext.frame import locks
from qontext.frame.disk import raise_disk_error
from qontext.frame.errors import QontextError

PREFIX = ".scratch-"


@contextlib.contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """An empty hidden folder under `parent`, removed afterwards. Leftovers of killed processes are removed
    first. A folder in use is locked and stays. A `parent` that is empty afterwards is removed, too.
    """
    is_new = not parent.exists()
    sweep(parent)
    with contextlib.ExitStack() as stack:
        folder = _locked_folder(parent, stack)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if is_new:
                with contextlib.suppress(OSError):  # not empty
                    parent.rmdir()


def sweep(parent: Path) -> None:
    """Remove the folders of processes that no longer run."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(QontextError):  # in use
            with locks.lock(folder):
                shutil.rmtree(folder, ignore_errors=True)


def is_free(parent: Path) -> bool:
    """True if the directory contains only scratch folders and locks."""
    return all(path.name.startswith((PREFIX, ".lock")) for path in parent.iterdir())


def _locked_folder(parent: Path, stack: contextlib.ExitStack) -> Path:
    while True:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        except OSError as error:
            raise_disk_error(error, parent, anyway=True)
        with contextlib.ExitStack() as attempt:
            attempt.enter_context(locks.lock(folder, wait=True))
            if (
                folder / ".lock"
            ).exists():  # otherwise another process removed the folder before it was locked
                stack.push(attempt.pop_all())
                return folder
