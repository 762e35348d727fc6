"""`qontext refresh`: the index of a directory follows its documents, and nothing is trained. Its sources are added, replaced
and removed here, one by one. A directory that does not exist yet begins with words alone, or with words and the vectors of
an encoder that nobody adapted.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from qontext.frame import files, log
from qontext.frame.config import Action, Input, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.stages import Pipeline
from qontext.retrieve.directory import ADAPTED, is_adapted


class RefreshConfig(StageConfig):
    out: Annotated[str, Input(positional=True, by_content=False)]
    """A directory of adapt, or one that this command began. One that does not exist begins with --source."""

    source: tuple[str, ...] = ()
    """Add or replace a source, as NAME=PATH or PATH: what adapt reads. May be repeated."""

    about: tuple[str, ...] = ()
    """A sentence about a source, as NAME=SENTENCE, for people and agents who choose where to search."""

    remove: tuple[str, ...] = ()
    """Remove the source of this name. May be repeated."""

    only: tuple[str, ...] = ()
    """Look for changes in the source of this name only. May be repeated."""

    encoder: Annotated[str | None, Input()] = None
    """For a new directory: the encoder, a folder or a Hub name. Default: all-MiniLM-L6-v2, if it is on this machine."""

    words: Annotated[bool, Action()] = False
    """Search by words alone, at once: compute no vectors if there are none yet."""


def run(config: RefreshConfig) -> dict[str, Any]:
    from qontext.adapt.follow import Follower
    from qontext.adapt.sources import Edits, same_sources_if_failing
    from qontext.adapt.state import writing

    started, root = time.monotonic(), Path(config.out)
    files.require_no_file(root)
    if not is_adapted(root) and not config.source:
        raise QontextError(
            f"not a finished directory: it has no {ADAPTED}",
            place=root,
            remedy="Begin one with --source DOCUMENTS, or finish its 'qontext adapt'.",
        )
    if not is_adapted(root) and not _is_free(root):
        raise QontextError("is not empty and was not written by adapt or refresh", place=root)
    edits = Edits(config.source, config.about, config.remove, config.only)
    try:
        with writing(root), same_sources_if_failing(root):
            result = Follower(edits, root, config.encoder, words=config.words).run()
    except OSError as error:
        files.raise_disk_error(error, root)
    log.show_table(f"refresh → {root}", {name: value for name, value in result.items() if name != "out"})
    return {**result, "seconds": round(time.monotonic() - started, 3)}


def _is_free(root: Path) -> bool:
    """True for a directory that does not exist, has no content, or was begun."""
    is_empty = not root.is_dir() or all(child.name.startswith(".") for child in root.iterdir())
    return is_empty or (root / "sources.json").is_file()


REFRESH = Pipeline(
    verb="refresh",
    config=RefreshConfig,
    run=run,
    examples="""
        qontext refresh runs/mine
        qontext refresh runs/new --source docs.jsonl --words
        qontext refresh runs/new --source notes=handbook --about notes="How we work here."
    """,
)
