"""`adapt` as the tests call it: whole, or up to a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qontext import api


def adapt(documents: Path, out: Path, encoder: Path, **settings: Any) -> dict[str, Any]:
    settings = {"budget": "90s", "yes": True, **settings}  # a busy machine is no reason to fail
    result: Any = api.adapt(documents, out=out, encoder=encoder, **settings)
    return result if isinstance(result, dict) else dict(result.summary)  # a dry run's plan is a dictionary


def adapt_until(step: str, documents: Path, out: Path, encoder: Path, **settings: Any) -> Path:
    """Plan, and carry out the recipe up to a step; returns the folder of the steps."""
    adapt(documents, out, encoder, dry_run=True, **settings)
    api.run(out / "recipe.toml", out=out / "steps", until=step)
    return out / "steps"
