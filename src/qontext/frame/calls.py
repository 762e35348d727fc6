"""A verb as a Python function: `split("docs.jsonl", out="passages")`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from qontext.frame import disk, interrupts, trust
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError
from qontext.frame.execution import execute, report_of
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
        out, overwrite = None, False
        if isinstance(loaded, Stage):
            out, overwrite = settings.pop("out", None), bool(settings.pop("overwrite", False))
        config = loaded.config.make(settings, where=verb)
        with disk.explained():
            if out is not None:
                assert isinstance(loaded, Stage)
                return execute(loaded, config, directory(out), overwrite=overwrite)
            report = report_of(loaded, config, "out=")
            result = report.run(config)
        return result if report.returned is None else report.returned(result)

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
