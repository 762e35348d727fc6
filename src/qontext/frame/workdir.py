"""The directory that a stage is writing: atomic parts, the processes that write them together, and temporary folders beside
the result instead of in the system's temporary folder."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qontext.frame import locks, process
from qontext.frame.errors import QontextError, printable
from qontext.frame.files import CLAIM, META, make_directory, raise_disk_error, sync

TEMPORARY, SCRATCH = ".tmp-", ".scratch-"
"""Beginnings of the names of temporary files and folders."""


@dataclass
class Workdir:
    """A directory being written. A stage checks `has(name)` and writes missing parts with `write(name)`.
    Several processes may write one directory together. This process is `rank` of `world`, and holds the lock
    named after `writer`.
    """

    path: Path
    writer: str = "0"
    rank: int = 0
    world: int = 1
    opened: float = field(default_factory=time.monotonic, compare=False, repr=False)
    """The start of this process's work on it, in seconds of the monotonic clock."""

    def has(self, name: str) -> bool:
        """True if the part exists (and is complete, since parts appear by rename)."""
        return (self.path / name).exists()

    def wait_for(self, names: Iterable[str]) -> None:
        """Wait until these parts exist, which other processes are writing."""
        for name in names:
            process.wait_until(functools.partial(self.has, name))

    @contextlib.contextmanager
    def write(self, name: str) -> Iterator[Path]:
        """Yield a temporary path to write a file to; on exit, it becomes the part `name`. The path is in its
        own folder, because some libraries write a file beside it first, which is removed with the folder.
        After an exception nothing remains. A full disk is reported as such.
        """
        if Path(name).is_absolute() or ".." in Path(name).parts:  # a name from a file that was received
            raise QontextError(f"{name!r} is not below the output directory", place=self.path)
        final = self.path / name
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_name(f"{TEMPORARY}{self.writer}.{os.getpid()}-{final.name}")
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            target = temporary / final.name
            yield target
            _open_like(temporary, target)
            sync(target)
            target.replace(final)
            temporary.rmdir()
            sync(final.parent)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise_disk_error(error, final)

    @contextlib.contextmanager
    def write_folder(self, name: str) -> Iterator[Path]:
        """Yield a temporary folder to fill; on exit, it becomes the part `name` atomically, replacing an
        earlier one.

        With the name ``"."`` its files become parts of the directory itself, one by one.
        """
        final = self.path / name
        temporary = self.path / f"{TEMPORARY}{self.writer}.{os.getpid()}-{final.name}"
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            yield temporary
            files = sorted(p for p in temporary.rglob("*") if p.is_file())
            _open_like(temporary, *files)
            for path in (*files, *{p.parent for p in files}):
                sync(path)
            if name == ".":
                for path in files:
                    target = self.path / path.relative_to(temporary)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(target)
                shutil.rmtree(temporary)
            else:
                final.parent.mkdir(parents=True, exist_ok=True)
                self.remove(name)
                temporary.replace(final)
            sync(final.parent)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise_disk_error(error, final)

    def write_text(self, name: str, text: str) -> None:
        with self.write(name) as path:
            path.write_text(text, encoding="utf-8")

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, as_json(value, indent=2) + "\n")

    def remove(self, name: str) -> None:
        """Remove a part, such as a checkpoint that a newer one replaces. A folder is first renamed to a temporary name, so
        a killed process leaves it whole or not at all.
        """
        final = self.path / name
        if final.is_dir():
            aside = self.path / f"{TEMPORARY}{self.writer}.{os.getpid()}-removed-{final.name}"
            final.replace(aside)
            final = aside
        discard(final)

    def names(self) -> list[str]:
        """The existing parts, in sorted order."""
        names = (p.relative_to(self.path) for p in self._below() if p.is_file())
        return sorted(
            name.as_posix()
            for name in names
            if name.as_posix() not in (META, CLAIM) and not any(part.startswith(".") for part in name.parts)
        )

    def sweep(self, *, deep: bool = True) -> None:
        """Remove temporary files of earlier, killed holders of this writer's name. `deep=False` is for a
        directory of directories that have their own writers.
        """
        for path in list(self._below(deep)):
            if path.name.startswith(f"{TEMPORARY}{self.writer}."):
                discard(path)

    def _below(self, deep: bool = True) -> Iterator[Path]:
        """All files and folders. Unlike `Path.rglob`, it passes over those that another writer removes meanwhile."""
        for folder, folders, files in os.walk(self.path):
            yield from (Path(folder, name) for name in (*folders, *files))
            if not deep:
                return


def as_json(value: Any, indent: int | None = None) -> str:
    """The value as readable JSON; as ASCII if it names a file whose name is not UTF-8."""
    form: dict[str, Any] = {"indent": indent, "default": lambda one: one.as_json()}
    text = json.dumps(value, ensure_ascii=False, **form)
    return text if printable(text) == text else json.dumps(value, **form)


def _open_like(folder: Path, *files: Path) -> None:
    """Let those read the files who may read a folder that was made as usual; some libraries write files for their owner
    alone."""
    mode = folder.stat().st_mode & 0o666
    for path in files:
        about = path.lstat()
        if about.st_mode & 0o666 != mode and about.st_nlink == 1 and not path.is_symlink():
            path.chmod(mode)


def discard(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """An empty hidden folder under `parent`, removed afterwards. Leftovers of killed processes are removed
    first. A folder in use is locked and stays. A `parent` that is empty afterwards is removed, too.
    """
    is_new = not parent.exists()
    make_directory(parent)
    for left in parent.glob(f"{SCRATCH}*"):
        with contextlib.suppress(QontextError), locks.lock(left):
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=parent))
    with locks.lock(folder, wait=True):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if is_new:
                with contextlib.suppress(OSError):  # not empty
                    parent.rmdir()


def has_only_scratch(parent: Path) -> bool:
    """True if the directory contains only scratch folders and locks."""
    return all(path.name.startswith((SCRATCH, ".lock")) for path in parent.iterdir())
