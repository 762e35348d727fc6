"""`qontext clean`: remove files that are not needed for search and updates from a directory of `adapt`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from qontext.frame import artifacts, files, locks, log
from qontext.frame.config import Action, Input, StageConfig, existing
from qontext.frame.errors import QontextError
from qontext.frame.files import shown_size
from qontext.frame.stages import Cleaner
from qontext.frame.workdir import TEMPORARY
from qontext.retrieve.directory import PLAN, index_of, is_adapted, read_adapted
from qontext.workflow.show import size_of

REMOVED = {
    "steps": "the steps of training: without them, --retrain or another plan starts from scratch, and an update cannot "
    "determine the share of new passages",
    "report": "the results as a page: adapted.json and 'qontext show' keep them",
}
"""Folder → the consequence of removing it."""


class CleanConfig(StageConfig):
    directory: Annotated[str, Input(positional=True)]
    """A finished directory of `adapt`."""

    keep_report: bool = False
    """Keep the report."""

    dry_run: Annotated[bool, Action()] = False
    """Only show what would be removed."""


def run(settings: CleanConfig) -> dict[str, Any]:
    root = existing(settings.directory, "the directory")
    _check(root)
    names = [name for name in REMOVED if not (settings.keep_report and name == "report")]
    rows: list[dict[str, Any]] = [
        {"folder": name, "size": size_of(root / name) + size_of(_aside(root, name)), "cost": REMOVED[name]}
        for name in names
        if (root / name).is_dir() or _aside(root, name).is_dir()
    ]
    if not settings.dry_run and rows:
        _remove(root, [row["folder"] for row in rows])
    title = f"{'Would remove' if settings.dry_run else 'Removed'} from {root}"
    if rows:
        log.show_rows(title, [{**row, "size": shown_size(row["size"])} for row in rows])
        log.note("Search and updates still work.")
    else:
        log.note(f"{root} contains nothing to remove.")
    return {
        "path": str(root),
        "removed": [] if settings.dry_run else rows,
        "bytes": sum(r["size"] for r in rows),
    }


def _check(root: Path) -> None:
    """Raise an error unless this is a finished directory of `adapt`, in which only `adapt` wrote what is removed."""
    if not is_adapted(root):
        if (root / PLAN).is_file():
            raise QontextError(
                "is an unfinished directory of adapt",
                place=root,
                remedy="To finish it, run its 'qontext adapt' again.",
            )
        raise QontextError(
            "was not written by adapt",
            place=root,
            remedy="Pass the --out of a finished 'qontext adapt'.",
        )
    read_adapted(root)  # which refuses a file that only has its name
    if (root / PLAN).is_file():  # not a saved searcher, which has nothing to remove
        artifacts.open_artifact(index_of(root) / "passages", verb="split")
    for name in REMOVED:
        for path in _strange(root / name):
            raise QontextError(
                "was not written by adapt, and would be removed with its folder",
                place=path,
                remedy="Move it elsewhere.",
            )


def _strange(folder: Path) -> Iterator[Path]:
    """The entries of a folder of results that are none."""
    if folder.is_symlink() or not folder.is_dir() or artifacts.is_artifact(folder):
        return
    for child in sorted(folder.iterdir()):
        is_made = any((child / name).is_file() for name in (artifacts.META, artifacts.CLAIM))
        if not (is_made or child.name == "recipe.toml" or child.name.startswith((".lock", TEMPORARY))):
            yield child


def _aside(root: Path, name: str) -> Path:
    """The temporary name of a folder while it is removed, at which a killed command leaves the rest of it."""
    return root / f"{TEMPORARY}0.{name}"


def _remove(root: Path, names: list[str]) -> None:
    """Remove the folders, unless another process writes in them. For links, only the link is removed. Each
    folder is first renamed to a temporary name, so the removal is atomic.
    """
    locks.refuse_if_written(root)
    for name in names:
        for file in (artifacts.META, artifacts.CLAIM):
            for match in (root / name).glob(f"**/{file}"):
                locks.refuse_if_written(match.parent)
    work = artifacts.Workdir(root)
    work.sweep(deep=False)
    for name in names:
        try:
            if (root / name).is_symlink():
                (root / name).unlink()
            elif (root / name).is_dir():
                shutil.rmtree((root / name).rename(_aside(root, name)))
        except OSError as error:
            files.raise_disk_error(error, root / name)


CLEAN = Cleaner(
    verb="clean",
    config=CleanConfig,
    run=run,
    examples="""
        qontext clean runs/mine --dry-run
        qontext clean runs/mine
    """,
)
