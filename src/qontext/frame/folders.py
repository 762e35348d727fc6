"""The files below a folder, each once, even if folders link to each other."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

Identity = tuple[int, int]


def walk(
    root: Path, *, enter: Callable[[os.DirEntry[str]], bool] = lambda entry: True
) -> Iterator[os.DirEntry[str] | OSError]:
    """The files below `root` in sorted order; a folder that cannot be read yields its error instead.

    Links to folders are followed, but a folder is read once: at its own place if that is below `root`, else
    at the first link to it. `enter` selects the folders to read.
    """
    visited = set(_own(root, enter))
    yield from _below(root, enter, visited, through_link=False)


def _below(
    folder: Path, enter: Callable[[os.DirEntry[str]], bool], visited: set[Identity], through_link: bool
) -> Iterator[os.DirEntry[str] | OSError]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        yield error
        return
    for entry in entries:
        try:
            is_folder = entry.is_dir()
        except OSError as error:
            if error.errno != errno.ELOOP:
                yield error
                continue
            is_folder = False  # a loop of links
        if not is_folder:
            yield entry
        elif enter(entry):
            linked = through_link or entry.is_symlink()
            if linked:
                identity = _identity(Path(entry.path))
                if identity in visited:
                    continue
                visited.add(identity)
            yield from _below(Path(entry.path), enter, visited, linked)


def _own(root: Path, enter: Callable[[os.DirEntry[str]], bool]) -> Iterator[Identity]:
    """The root and the folders below it that are not reached through a link."""
    yield _identity(root)
    try:
        entries = list(os.scandir(root))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and enter(entry):
            yield from _own(Path(entry.path), enter)


def _identity(path: Path) -> Identity:
    status = path.stat()
    return status.st_dev, status.st_ino
