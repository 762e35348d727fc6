"""A name → the directory of a transformers model: a path on disk, or a model on the Hub."""

from __future__ import annotations

import contextlib
import difflib
import json
from pathlib import Path

from qontext.frame import artifacts
from qontext.frame.disk import require_regular
from qontext.frame.errors import QontextError
from qontext.models import hub
from qontext.models.folder import check_model
from qontext.models.presets import PRESETS


def locate(name: str) -> Path:
    """The directory of `name`, with config.json and weights."""
    path = Path(name).expanduser()
    if (path / artifacts.CLAIM).exists():
        artifacts.open_artifact(path)  # says so if it is not finished
    near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.75)
    if near and not path.exists():
        raise QontextError(
            f"unknown encoder {name!r}",
            remedy=f"Did you mean {near[0]!r}? The presets are: {', '.join(PRESETS)}.",
        )
    directory = _transformer_of(hub.locate(name, "model", weights=True))
    check_model(directory)
    return directory


def _transformer_of(directory: Path) -> Path:
    """The transformer's folder in a sentence-transformers directory; else the directory itself."""
    if (directory / "config.json").exists():
        return directory
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        first = json.loads(require_regular(directory / "modules.json").read_text(encoding="utf-8"))[0]["path"]
        is_inside = not Path(first).is_absolute() and ".." not in Path(first).parts
        if is_inside and (directory / first / "config.json").is_file():
            return directory / str(first)
    raise QontextError(
        "contains no encoder: it has no config.json",
        place=directory,
        remedy="Pass a directory saved by transformers or sentence-transformers.",
    )
