"""A name → the directory of a transformers model: a path on disk, or a model of the hub."""

from __future__ import annotations

import contextlib
import difflib
import json
from pathlib import Path

from qontext import artifacts, hub
from qontext.engine.presets import PRESETS
from qontext.errors import QontextError


def locate(name: str) -> Path:
    """The directory with config.json and weights that `name` stands for."""
    path = Path(name).expanduser()
    if (path / artifacts.CLAIM).exists():
        artifacts.open_artifact(path)  # says so if it is not finished
    near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.75)
    if near and not path.exists():
        raise QontextError(
            f"unknown encoder {name!r}",
            remedy=f"Did you mean {near[0]!r}? The presets are: {', '.join(PRESETS)}.",
        )
    return _transformer_of(hub.locate(name, "model", weights=True))


def _transformer_of(directory: Path) -> Path:
    """Where the transformer lies in a sentence-transformers directory; else the directory itself."""
    if (directory / "config.json").is_file():
        return directory
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        first = json.loads((directory / "modules.json").read_text(encoding="utf-8"))[0]["path"]
        if (directory / first / "config.json").is_file():
            return directory / str(first)
    raise QontextError(
        "holds no encoder: there is no config.json",
        place=directory,
        remedy="Give a directory that transformers or sentence-transformers saved.",
    )
