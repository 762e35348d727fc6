"""The shared part of all model cards: training settings and results."""

from __future__ import annotations

from typing import Any

import qontext
from qontext.frame.config import StageConfig

_MADE = """
## How it was made

| setting | value |
|---|---|
{settings}

| result | value |
|---|---|
{results}

Made with qontext {version}.
"""


def how_it_was_made(config: StageConfig, summary: dict[str, Any], *inputs: str) -> str:
    """Markdown; `inputs` names the fields whose paths are listed with the settings."""
    settings = {**{name: getattr(config, name) for name in inputs}, **config.identity()}
    return _MADE.format(settings=_rows(settings), results=_rows(summary), version=qontext.__version__)


def _rows(values: dict[str, Any], prefix: str = "") -> str:
    """Lines of a table; nested values have joined names, and times are omitted, so that the card is reproducible."""
    lines = []
    for name, value in values.items():
        if isinstance(value, dict):
            lines.append(_rows(value, f"{prefix}{name} "))
        elif value is not None and "second" not in name:
            lines.append(f"| {prefix}{name} | {value} |")
    return "\n".join(line for line in lines if line)
