"""Locating an artifact's inputs, also after the directory tree was moved or copied.

An input is recorded by its original path and by its path relative to the artifact. So it is found if the
whole tree was moved, and also if only the artifact was moved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

Entry = Mapping[str, str]
"""An input in `meta.json`: `path`, `digest` and, if the path existed, `beside`."""


def relative(path: str, directory: Path) -> dict[str, str]:
    """`beside`: the path relative to the artifact's directory, if it exists."""
    place = Path(path).expanduser()
    try:
        if not path or not place.exists():
            return {}
        # Links in the path are resolved, except if the input itself is a link.
        absolute = place.parent.resolve() / place.name if place.name not in ("", "..") else place.resolve()
        return {"beside": os.path.relpath(absolute, directory.resolve())}
    except (OSError, ValueError, RuntimeError):  # too long, not a path, or a loop of links
        return {}


def places(entry: Entry, directory: Path) -> list[Path]:
    """Candidate paths of the input, most likely first."""
    original = Path(entry["path"]).expanduser()
    if "beside" not in entry:
        return [original]
    beside = Path(os.path.normpath(directory.resolve() / entry["beside"]))
    return list(dict.fromkeys([beside, original]))


def rebased(entry: Entry, made_in: Path, now_for: Path) -> dict[str, str]:
    """The entry as a downstream artifact records it."""
    place = next((place for place in places(entry, made_in) if place.exists()), None)
    identity = {"path": entry["path"], "digest": entry["digest"]}
    return identity if place is None else {**identity, **relative(str(place), now_for)}
