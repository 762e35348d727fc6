"""`qontext sweep`: a recipe over a grid of settings, and the table of an ablation study.

The grid is one larger recipe: of each step there is a variant for every combination of the settings that it
depends on, and no more, so what the combinations share is done once. It runs, resumes and explains itself
like any recipe, and lies beside the results as recipe.toml.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from qontext import artifacts, log
from qontext.config import Input, StageConfig, parse_assignment
from qontext.errors import QontextError
from qontext.evaluate.compare import with_spread
from qontext.evaluate.significance import mean_and_spread
from qontext.evaluate.tables import Cell, Row, Table, to_csv, to_latex, to_markdown
from qontext.stages import Command
from qontext.workflow.recipe import Recipe, Step, plan, read_recipe, run_recipe

Combination = tuple[str, ...]
"""One value per grid setting, as written: ("pretrain.steps=2000", "finetune.lr=1e-5")."""


class SweepConfig(StageConfig):
    recipe: Annotated[str, Input(positional=True)]
    """The recipe: a TOML file, or the name of one that comes with the package. One of its steps evaluates."""

    grid: tuple[str, ...]
    """A setting and its values, as step.field=a,b,c or inputs.name=a,b,c; given several times, all combinations
    are run. Values of a field named seed are averaged in the table."""

    out: str
    """The directory for all variants of all steps, and for the table."""

    set: tuple[str, ...] = ()
    """Change a setting for all combinations, as step.field=value; may be given several times."""

    dry_run: bool = False
    """Only say what would be run."""


@dataclass(frozen=True)
class Sweep:
    """The larger recipe, and which of its steps belong to each combination."""

    recipe: Recipe
    labels: dict[Combination, dict[str, str]]  # combination → step of the recipe → its variant


def run(settings: SweepConfig) -> dict[str, Any]:
    axes = [parse_axis(text) for text in settings.grid]
    sweep = expand(settings.recipe, settings.set, axes)
    root = Path(settings.out)
    if settings.dry_run:
        rows = [
            {"step": step.name, "state": state, "why": why} for step, state, why in plan(sweep.recipe, root)
        ]
        log.show_rows(f"{len(sweep.labels)} combinations", rows)
        return {"combinations": len(sweep.labels), "steps": rows}
    root.mkdir(parents=True, exist_ok=True)
    work = artifacts.Workdir(root)
    with work.write("recipe.toml") as path:
        path.write_text(sweep.recipe.dump(), encoding="utf-8")
    run_recipe(sweep.recipe, root)
    cells = [(combination, _scores(steps, root)) for combination, steps in sweep.labels.items()]
    if not any(scores for _, scores in cells):
        raise QontextError(
            "no step of the recipe evaluates", place=settings.recipe, remedy="Add an [evaluate] step."
        )
    table = ablation_table([name for name, _ in axes], cells)
    with work.write("sweep.md") as path:
        path.write_text(to_markdown(table), encoding="utf-8")
    with work.write("sweep.tex") as path:
        path.write_text(to_latex(table), encoding="utf-8")
    names = list(cells[0][1])
    with work.write("sweep.csv") as path:
        rows_csv = [[*(part.partition("=")[2] for part in c), *(s.get(n) for n in names)] for c, s in cells]
        path.write_text(to_csv([*(name for name, _ in axes), *names], rows_csv), encoding="utf-8")
    log.show_rows(
        table.caption, [dict(zip(table.columns, (cell.text for cell in row.cells))) for row in table.rows]
    )
    return {
        "out": str(root),
        "combinations": [
            {**dict(part.split("=", 1) for part in c), "measures": scores} for c, scores in cells
        ],
    }


def parse_axis(text: str) -> tuple[str, list[str]]:
    """``step.field=a,b`` → the setting and its assignments ``step.field=a``, ``step.field=b``."""
    parse_assignment(text)
    name, _, values = text.partition("=")
    parts = [value.strip() for value in values.split(",") if value.strip()]
    if not parts or len(set(parts)) < len(parts):
        raise QontextError(f"a grid needs different values: {text!r}", remedy="Write it as step.field=a,b,c.")
    return name.strip(), [f"{name.strip()}={value}" for value in parts]


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
    return Sweep(Recipe(title, tuple(steps.values())), labels)


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
    return "@" + labels[value[1:]] if isinstance(value, str) and value.startswith("@") else value


def _file_name(part: str, axes: Sequence[tuple[str, list[str]]]) -> str:
    """``pretrain.steps=2000`` → ``steps=2000``, if no other setting of the grid has that name."""
    field = part.partition("=")[0].rpartition(".")[2]
    is_clear = sum(name.rpartition(".")[2] == field for name, _ in axes) == 1
    return re.sub(r"[^\w.=+-]+", "-", part.partition(".")[2] if is_clear else part)


def _scores(steps: dict[str, str], root: Path) -> dict[str, float]:
    """The measures of a combination's evaluations; with several, each measure is named after its step."""
    made = {name: artifacts.open_artifact(root / label) for name, label in steps.items()}
    evaluations = {name: found for name, found in made.items() if found.verb == "evaluate"}
    return {
        measure if len(evaluations) == 1 else f"{name}: {measure}": value
        for name, found in evaluations.items()
        for measure, value in found.summary["measures"].items()
    }


def ablation_table(axes: Sequence[str], cells: Sequence[tuple[Combination, dict[str, float]]]) -> Table:
    """A row per combination, seeds averaged; the best of each column is marked."""
    kept = [i for i, name in enumerate(axes) if name.rpartition(".")[2] != "seed"]
    rows: dict[Combination, list[dict[str, float]]] = {}
    for combination, scores in cells:
        rows.setdefault(tuple(combination[i].partition("=")[2] for i in kept), []).append(scores)
    measures = list(cells[0][1])
    means = {
        key: {m: mean_and_spread([s[m] for s in found]) for m in measures} for key, found in rows.items()
    }
    best = {m: max(row[m][0] for row in means.values()) for m in measures}
    table = Table([*(axes[i] for i in kept), *measures], caption="Sweep")
    for key, row in means.items():
        settings = [Cell(value, is_text=True) for value in key]
        table.rows.append(
            Row((*settings, *(Cell(with_spread(*row[m]), is_best=row[m][0] == best[m]) for m in measures)))
        )
    if len(kept) < len(axes):
        table.notes.append("± is the standard deviation over seeds.")
    return table


SWEEP = Command(
    verb="sweep",
    config=SweepConfig,
    run=run,
    examples="""
        qontext sweep laptop.toml --grid pretrain.decoder_layers=1,2,3,4,6 --out runs/layers
        qontext sweep laptop.toml --grid pretrain.objective=condenser,cot_mae --grid pretrain.seed=1,2,3 --out runs/seeds
    """,
)
