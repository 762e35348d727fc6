"""The index of all documents, updated when documents change, reusing the vectors of unchanged ones."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qontext.adapt.nearest import Choice
from qontext.adapt.recipes import serving_recipe
from qontext.adapt.request import Request
from qontext.adapt.state import INDEX, STEPS
from qontext.frame import artifacts
from qontext.frame.artifacts import Workdir
from qontext.retrieve.searcher import DENSE, TOKENS
from qontext.workflow.recipe import Recipe, read_recipe
from qontext.workflow.run import plan, run_recipe

FILE = "index.toml"


def make_index(
    request: Request,
    model: str,
    root: Path,
    reuse: Mapping[str, str],
    choice: Choice | None,
    on: str,
    *,
    tokens: bool,
) -> list[dict[str, Any]]:
    """Build the index with this encoder, unless it is up to date; returns the steps that ran. `reuse` names
    what was encoded earlier. With `tokens`, it has their bits.

    Without a choice, the directory keeps the index of its vectors.
    """
    index, before = root / INDEX, root / f"{INDEX}.before"
    choice = choice or chosen(root)
    if (before / "vectors").is_dir():  # an interrupted update
        reuse = {**reuse, **_encoded(before)}
    recipe = _write(request, model, root, reuse, choice, tokens=tokens)
    if not before.exists() and (index / "vectors").is_dir():
        states = {step.name: state for step, state, _ in plan(recipe, index)}
        if choice.is_exact and (index / DENSE).exists():
            shutil.rmtree(index / DENSE)
        if not tokens:
            shutil.rmtree(index / TOKENS, ignore_errors=True)
        if all(state == "done" for state in states.values()):
            return []
        is_rest_done = all(state == "done" for name, state in states.items() if name != DENSE)
        is_missing = is_rest_done and not artifacts.is_artifact(index / DENSE)
        if artifacts.is_artifact(index / "vectors") and not is_missing:
            index.rename(before)
            recipe = _write(request, model, root, {**reuse, **_encoded(before)}, choice, tokens=tokens)
    rows = run_recipe(recipe, index, on=on)
    shutil.rmtree(before, ignore_errors=True)
    return rows


def chosen(root: Path) -> Choice:
    """What searches the vectors of this directory."""
    if (root / FILE).exists():
        for step in read_recipe(str(root / FILE)).steps:
            if step.name == DENSE:
                return Choice.of_step(step.settings)
    return Choice("exact", {})


def _encoded(index: Path) -> dict[str, str]:
    """What an index has that can be reused."""
    return {name: str(index / name) for name in ("vectors", TOKENS) if artifacts.is_artifact(index / name)}


def _write(
    request: Request, model: str, root: Path, reuse: Mapping[str, str], choice: Choice, *, tokens: bool
) -> Recipe:
    recipe = recipe_of(request, model, root, reuse, choice, tokens=tokens)
    Workdir(root).write_text(FILE, recipe.dump())
    return read_recipe(str(root / FILE))


def recipe_of(
    request: Request, model: str, root: Path, reuse: Mapping[str, str], choice: Choice, *, tokens: bool
) -> Recipe:
    """The recipe of the index, as it is written."""
    dense = None if choice.is_exact else choice.settings(root / f"{INDEX}.before" / DENSE)
    return serving_recipe(request, model, reuse, dense, tokens=tokens)


def new_share(root: Path, passages: Path) -> float | None:
    """The share of passages whose text is new since training; None after `clean`."""
    if not (root / STEPS / "split").is_dir():
        return None
    import numpy as np

    from qontext.data.collection import read_passages
    from qontext.retrieve.reuse import text_hashes

    def hashes(folder: Path) -> Any:
        return np.unique(text_hashes([p.content for p in read_passages(folder)]))

    now = hashes(passages)
    return float(1 - np.isin(now, hashes(root / STEPS / "split")).mean())
