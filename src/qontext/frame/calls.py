"""A verb as a Python function: `split("docs.jsonl", out="passages")`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from qontext.frame import disk, interrupts, trust
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError
from qontext.frame.execution import execute
from qontext.frame.stages import VERBS, Stage, load


def function(name: str) -> Callable[..., Any]:
    """The verb as a Python function: `split(source, out=..., max_tokens=128)`."""
    verb = name.replace("_", "-")
    loaded = load(verb)
    arguments = [field for field, mark in loaded.config.inputs().items() if mark.positional]

    def call(*values: Any, **settings: Any) -> Any:
        if len(values) > len(arguments):
            raise QontextError(f"{verb} takes {len(arguments)} positional arguments, got {len(values)}")
        settings = {**dict(zip(arguments, map(_text, values))), **{k: _text(v) for k, v in settings.items()}}
        trust.give(settings)
        with interrupts.in_call(), trust.trusting(bool(settings.pop("trust", False))):
            return run(settings)

    def run(settings: dict[str, Any]) -> Any:
        if not isinstance(loaded, Stage):
            with disk.explained():
                return loaded.run(loaded.config.make(settings, where=verb))
        if "out" not in settings and loaded.needs_out:
            raise QontextError(f"{verb} needs out=, the output directory")
        out, overwrite = settings.pop("out", None), bool(settings.pop("overwrite", False))
        config = loaded.config.make(settings, where=verb)
        with disk.explained():
            artifact = execute(loaded, config, None if out is None else directory(out), overwrite=overwrite)
        return artifact if out is not None or loaded.returned is None else loaded.returned(artifact.summary)

    call.__name__ = name
    call.__doc__ = VERBS[verb].help
    return call


def directory(text: str) -> Path:
    """The directory that `--out` names."""
    from qontext.frame.config import problem_of_name

    if problem := problem_of_name(text, is_path=True):
        raise QontextError(f"--out {problem}", remedy="Name an output directory.")
    return Path(text)


def _text(value: Any) -> Any:
    """Convert paths and artifacts to a path string, so that Python calls can pass either."""
    if isinstance(value, Artifact):
        return str(value.path)
    if isinstance(value, list | tuple):
        return [_text(item) for item in value]
    return str(value) if isinstance(value, Path) else value
