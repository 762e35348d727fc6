"""The arms of a sweep and a grid of settings as one larger recipe: each step has a variant for every combination of the
settings that it depends on, so shared steps run once. It runs and resumes like any recipe."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from qontext.frame.config import parse_assignment
from qontext.frame.errors import QontextError
from qontext.workflow.recipe import Recipe, Step, read_recipe
from qontext.workflow.tables import (
    Tables,
    check_target,
    find_recipe,
    read_tables,
    steps_of,
    target_of,
    targets,
)

Axis = tuple[str, list[str]]
"""A setting of the grid with its assignments ``setting=value``; or `arm` with ``arm=NAME``."""
Combination = tuple[str, ...]
"""One value per grid setting, as written: ("pretrain.steps=2000", "finetune.lr=1e-5")."""
ARM = "arm"


@dataclass(frozen=True)
class Sweep:
    """The larger recipe, and the steps of each combination."""

    recipe: Recipe
    labels: dict[Combination, dict[str, str]]  # combination → step of the recipe → its variant
    arms: dict[str, Recipe] = field(default_factory=dict)


def axes_of(arms: Sequence[str], grid: Sequence[str]) -> list[Axis]:
    """The arms of a sweep, if it is one, and the settings of the grid."""
    named = [(ARM, [f"{ARM}={name}" for name in arms])] if arms else []
    return [*named, *map(parse_axis, grid)]


def parse_axis(text: str) -> Axis:
    """``step.field=a,b`` → the setting and its assignments ``step.field=a``, ``step.field=b``."""
    name, listed = parse_assignment(text)
    if isinstance(listed, list):
        parts = [json.dumps(value, ensure_ascii=False, default=str) for value in listed]
    else:
        parts = [value.strip() for value in text.partition("=")[2].split(",") if value.strip()]
    if not parts or len(set(parts)) < len(parts):
        raise QontextError(
            f"a grid needs distinct values: {text!r}",
            remedy="Use step.field=a,b,c or step.field=[…].",
        )
    return name, [f"{name}={value}" for value in parts]


def expand(recipe: str, changes: tuple[str, ...], axes: Sequence[Axis], *, small: bool = False) -> Sweep:
    """The recipe of all combinations, each distinct variant of a step once."""
    combinations: list[Combination] = list(itertools.product(*(values for _, values in axes)))
    recipes = _recipes(recipe, changes, combinations, small=small)
    signatures: dict[str, dict[Combination, str]] = {}
    for c, expanded in recipes.items():
        own: dict[str, str] = {}
        for step in expanded.steps:
            upstream = {up: own[up] for up in sorted(step.upstream())}
            own[step.name] = json.dumps([step.stage.verb, step.settings, upstream], default=str)
            signatures.setdefault(step.name, {})[c] = own[step.name]
    labels: dict[Combination, dict[str, str]] = {c: {} for c in combinations}
    steps: dict[str, Step] = {}
    variants: dict[str, str] = {}
    for c, expanded in recipes.items():
        for step in expanded.steps:
            signature = signatures[step.name]
            first = next(other for other, one in signature.items() if one == signature[c])
            parts = [part for place, part in enumerate(first) if _matters(signature, place)]
            label = "--".join([step.name, *(_file_name(part, axes) for part in parts)])
            labels[c][step.name] = label
            if variants.setdefault(label, signature[c]) != signature[c]:
                raise QontextError(
                    f"two variants of the step {step.name!r} have the same name, {label!r}",
                    place=recipe,
                    remedy="Give arms names, and settings values, that differ in letters or digits.",
                )
            steps.setdefault(label, Step(label, step.stage, _renamed(step.settings, labels[c])))
    for place, (name, _) in enumerate(axes):
        if name != ARM and not any(_matters(signature, place) for signature in signatures.values()):
            raise QontextError(f"{name} changes nothing in the recipe", place=recipe)
    if not any(step.stage.verb == "evaluate" for step in steps.values()):
        raise QontextError("the recipe has no evaluate step", place=recipe, remedy="Add an [evaluate] step.")
    of_all = next(iter(recipes.values()))
    arms = {c[0].partition("=")[2]: one for c, one in recipes.items() if axes[0][0] == ARM}
    return Sweep(Recipe(of_all.title, tuple(steps.values()), of_all.file), labels, arms)


def _recipes(
    recipe: str, changes: tuple[str, ...], combinations: Sequence[Combination], *, small: bool
) -> dict[Combination, Recipe]:
    """The recipe of each combination. In an arm without a step or an input, changes of it are left out."""
    file, recipes, arms, known = find_recipe(recipe), {}, dict[str, Tables](), dict[str, None]()
    for c in combinations:
        arm = next((part.partition("=")[2] for part in c if part.startswith(f"{ARM}=")), None)
        settings = (*changes, *(part for part in c if not part.startswith(f"{ARM}=")))
        if arm is not None:
            if arm not in arms:
                arms[arm] = read_tables(file, small=small, arm=arm)
            steps = steps_of(arms[arm])
            own = targets(arms[arm], [change for change in settings if target_of(change) in steps])
            settings = tuple(change for change in settings if target_of(change) in own)
            known |= dict.fromkeys(own)
        recipes[c] = read_recipe(recipe, settings, small=small, arm=arm, is_foreign=True)
    for change in changes if arms else ():
        check_target(change, known, file)
    return recipes


def _matters(signature: dict[Combination, str], place: int) -> bool:
    """True if a step changes with the setting at `place` of the combinations, all others equal."""
    groups: dict[Combination, set[str]] = {}
    for combination, own in signature.items():
        groups.setdefault((*combination[:place], *combination[place + 1 :]), set()).add(own)
    return any(len(own) > 1 for own in groups.values())


def _renamed(value: Any, labels: dict[str, str]) -> Any:
    """The settings with references to the variants of the steps."""
    if isinstance(value, dict):
        return {name: _renamed(item, labels) for name, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, labels) for item in value]
    if isinstance(value, str) and value.startswith("@"):
        step, slash, part = value[1:].partition("/")
        return f"@{labels[step]}{slash}{part}"
    return value


def _file_name(part: str, axes: Sequence[Axis]) -> str:
    """``pretrain.steps=2000`` → ``steps=2000``, if no other setting of the grid has that name."""
    field = part.partition("=")[0].rpartition(".")[2]
    is_clear = sum(name.rpartition(".")[2] == field for name, _ in axes) == 1
    if is_clear and not part.startswith(f"{ARM}="):
        part = part.partition(".")[2]
    return re.sub(r"[^\w.=+-]+", "-", part.replace('"', "")).strip("-")
