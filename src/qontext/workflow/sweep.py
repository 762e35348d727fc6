"""`qontext sweep`: a recipe over a grid of settings, and the table of an ablation study.

The grid is one larger recipe: each step has a variant for every combination of the settings that it depends
on, so shared steps run once. It runs and resumes like any recipe, and is stored beside the results as
recipe.toml.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from qontext.evaluation.tables import to_csv, to_latex, to_markdown
from qontext.frame import artifacts, log
from qontext.frame.config import Action, Input, StageConfig, parse_assignment
from qontext.frame.errors import QontextError
from qontext.frame.parts import Place
from qontext.frame.stages import Pipeline
from qontext.workflow.recipe import Recipe, Step, read_recipe
from qontext.workflow.run import check, plan, run_recipe

if TYPE_CHECKING:
    from qontext.workflow.ablation import Combination


class SweepConfig(StageConfig):
    recipe: Annotated[str, Input(positional=True)]
    """Recipe: a TOML file, or the name of a shipped one. It must have an evaluate step."""

    grid: tuple[str, ...]
    """A setting and its values, as step.field=a,b,c or inputs.name=a,b,c, or as a list if values contain
    commas: step.field=["0,1","10,11"]. If repeated, all combinations are run. Results are averaged over the
    values of a field named seed."""

    out: str
    """Directory for all variants of all steps, and for the table."""

    set: tuple[str, ...] = ()
    """Change a setting for all combinations, as step.field=value. May be repeated."""

    on: Place = "local"
    """Where steps are made that are made of parts: local, ray, HOST:PORT or ray://HOST:PORT; see 'qontext encode'."""

    dry_run: Annotated[bool, Action()] = False
    """Only show the steps that would run."""


@dataclass(frozen=True)
class Sweep:
    """The larger recipe, and the steps of each combination."""

    recipe: Recipe
    labels: dict[Combination, dict[str, str]]  # combination → step of the recipe → its variant


def run(settings: SweepConfig) -> dict[str, Any]:
    from qontext.workflow.ablation import ablation_table, arms_of, compare_arms, read_scores

    axes = [parse_axis(text) for text in settings.grid]
    sweep = expand(settings.recipe, settings.set, axes)
    root = Path(settings.out)
    check(sweep.recipe, root)
    if not any(step.stage.verb == "evaluate" for step in sweep.recipe.steps):
        raise QontextError(
            "the recipe has no evaluate step", place=settings.recipe, remedy="Add an [evaluate] step."
        )
    if settings.dry_run:
        rows = [
            {"step": step.name, "state": state, "why": why} for step, state, why in plan(sweep.recipe, root)
        ]
        log.show_rows(f"{len(sweep.labels)} combinations", rows)
        return {"combinations": len(sweep.labels), "steps": rows}
    work = artifacts.open_root(root)
    work.write_text("recipe.toml", sweep.recipe.dump())
    run_recipe(sweep.recipe, root, on=settings.on)
    cells = [(combination, read_scores(steps, root)) for combination, steps in sweep.labels.items()]
    arms = arms_of(cells)
    comparisons = compare_arms(arms)
    table = ablation_table([name for name, _ in axes], arms, comparisons)
    work.write_text("sweep.md", to_markdown(table))
    work.write_text("sweep.tex", to_latex(table))
    names = list(cells[0][1].values)
    csv_rows = [[*(part.partition("=")[2] for part in c), *(s.means.get(n) for n in names)] for c, s in cells]
    work.write_text("sweep.csv", to_csv([*(name for name, _ in axes), *names], csv_rows))
    log.show_rows(
        table.caption,
        [
            dict(zip(table.columns, (cell.text + " *" * cell.is_best for cell in row.cells)))
            for row in table.rows
        ],
    )
    for note in table.notes:
        log.note(note.replace("Bold:", "*:"))
    return {
        "out": str(root),
        "combinations": [
            {"settings": dict(part.split("=", 1) for part in c), "measures": scores.means}
            for c, scores in cells
        ],
        "comparisons": [row.as_json() for row in comparisons],
    }


def parse_axis(text: str) -> tuple[str, list[str]]:
    """``step.field=a,b`` → the setting and its assignments ``step.field=a``, ``step.field=b``."""
    name, listed = parse_assignment(text)
    if isinstance(listed, list):
        parts = [json.dumps(value, ensure_ascii=False) for value in listed]
    else:
        parts = [value.strip() for value in text.partition("=")[2].split(",") if value.strip()]
    if not parts or len(set(parts)) < len(parts):
        raise QontextError(
            f"a grid needs distinct values: {text!r}",
            remedy="Use step.field=a,b,c or step.field=[…].",
        )
    return name, [f"{name}={value}" for value in parts]


def expand(recipe: str, changes: tuple[str, ...], axes: Sequence[tuple[str, list[str]]]) -> Sweep:
    """The recipe of all combinations, each distinct variant of a step once."""
    combinations: list[Combination] = list(itertools.product(*(values for _, values in axes)))
    recipes = {c: read_recipe(recipe, (*changes, *c)) for c in combinations}
    signatures: dict[str, dict[Combination, str]] = {}
    for c, made in recipes.items():
        own: dict[str, str] = {}
        for step in made.steps:
            own[step.name] = json.dumps(
                [step.settings, {up: own[up] for up in sorted(step.upstream())}], default=str
            )
            signatures.setdefault(step.name, {})[c] = own[step.name]
    labels: dict[Combination, dict[str, str]] = {c: {} for c in combinations}
    steps: dict[str, Step] = {}
    for c, made in recipes.items():
        for step in made.steps:
            parts = _influences(signatures[step.name], c)
            label = "--".join([step.name, *(_file_name(part, axes) for part in parts)])
            labels[c][step.name] = label
            steps.setdefault(label, Step(label, step.stage, _renamed(step.settings, labels[c])))
    for place, (name, _) in enumerate(axes):
        if not any(_matters(found, place) for found in signatures.values()):
            raise QontextError(f"{name} changes nothing in the recipe", place=recipe)
    title = next(iter(recipes.values())).title
    return Sweep(Recipe(title, tuple(steps.values()), recipe), labels)


def _matters(signature: dict[Combination, str], place: int) -> bool:
    """Whether a step changes with the setting at `place` of the combinations, all others equal."""
    groups: dict[Combination, set[str]] = {}
    for combination, found in signature.items():
        groups.setdefault((*combination[:place], *combination[place + 1 :]), set()).add(found)
    return any(len(found) > 1 for found in groups.values())


def _influences(signature: dict[Combination, str], combination: Combination) -> list[str]:
    return [part for place, part in enumerate(combination) if _matters(signature, place)]


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


def _file_name(part: str, axes: Sequence[tuple[str, list[str]]]) -> str:
    """``pretrain.steps=2000`` → ``steps=2000``, if no other setting of the grid has that name."""
    field = part.partition("=")[0].rpartition(".")[2]
    is_clear = sum(name.rpartition(".")[2] == field for name, _ in axes) == 1
    return re.sub(r"[^\w.=+-]+", "-", (part.partition(".")[2] if is_clear else part).replace('"', ""))


SWEEP = Pipeline(
    verb="sweep",
    config=SweepConfig,
    run=run,
    examples="""
        qontext sweep recipe.toml --grid finetune.lr=1e-5,2e-5,5e-5 --out runs/rates
        qontext sweep recipe.toml --grid pretrain.method=mlm,condenser --grid pretrain.seed=1,2,3 --out runs/methods
        qontext sweep recipe.toml --grid 'pretrain.context=["query","near+olap+rand"]' --out runs/contexts
    """,
)
