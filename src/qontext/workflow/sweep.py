"""`qontext sweep`: a recipe over a grid of settings, or the arms of a shipped sweep, and the table of an ablation study.

All combinations are one larger recipe: each step has a variant for every combination of the settings that it depends
on, so shared steps run once. It runs and resumes like any recipe, and is stored beside the results as recipe.toml.
A file with a [sweep] table names its arms, each with its own changes of the recipe (see `tables`).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from qontext.evaluation.tables import Table, to_csv, to_latex, to_markdown
from qontext.frame import artifacts, log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Action, Input, StageConfig, parse_assignment
from qontext.frame.errors import QontextError
from qontext.frame.parts import RunsOn
from qontext.frame.stages import Pipeline
from qontext.workflow.recipe import Recipe, Step, read_recipe
from qontext.workflow.run import check, plan, run_folder, run_recipe
from qontext.workflow.scores import aligned, published_rows
from qontext.workflow.tables import (
    Tables,
    check_target,
    find_recipe,
    read_arms,
    read_tables,
    steps_of,
    target_of,
    targets,
)

if TYPE_CHECKING:
    from qontext.workflow.ablation import Combination


class SweepConfig(StageConfig):
    recipe: Annotated[str, Input(positional=True)]
    """Recipe or sweep: a TOML file, or the name of a shipped one (see: qontext recipes). It must have an evaluate
    step."""

    grid: tuple[str, ...] = ()
    """A setting and its values, as step.field=a,b,c or inputs.name=a,b,c, or as a list if values contain
    commas: step.field=["0,1","10,11"]. If repeated, all combinations are run, for every arm of a sweep. Results are
    averaged over the values of a field named seed. A sweep needs no grid."""

    out: str | None = None
    """Directory for all variants of all steps, and for the table. Default: runs/ and the recipe's name, with -small
    for the small profile."""

    set: tuple[str, ...] = ()
    """Change a setting for all combinations, as step.field=value or inputs.name=value. May be repeated."""

    small: bool = False
    """Run the small profile, on any labeled set in BEIR's layout. Its results are not meaningful."""

    on: RunsOn = "local"
    """Runner of steps that are made of parts: local, ray, HOST:PORT or ray://HOST:PORT; see 'qontext encode'."""

    dry_run: Annotated[bool, Action()] = False
    """Only show the steps that would run."""


Axis = tuple[str, list[str]]
"""A setting of the grid with its assignments ``setting=value``; or `arm` with ``arm=NAME``."""
ARM = "arm"


@dataclass(frozen=True)
class Sweep:
    """The larger recipe, and the steps of each combination."""

    recipe: Recipe
    labels: dict[Combination, dict[str, str]]  # combination → step of the recipe → its variant
    arms: dict[str, Recipe] = field(default_factory=dict)


def run(settings: SweepConfig) -> dict[str, Any]:
    axes = axes_of(settings)
    sweep = expand(settings.recipe, settings.set, axes, small=settings.small)
    root = Path(settings.out or run_folder(settings.recipe, settings.small))
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
    return {"out": str(root), **_results(sweep, axes, root, work, beside=not settings.small)}


def _results(
    sweep: Sweep, axes: Sequence[Axis], root: Path, work: Workdir, *, beside: bool
) -> dict[str, Any]:
    """Write and show the table, the published figures and the examples."""
    from qontext.workflow.ablation import (
        ablation_tables,
        arms_of,
        compare_arms,
        read_scores,
        show_neighborhood_recall,
    )
    from qontext.workflow.examples import show_examples

    cells = read_scores(sweep.labels, root)
    arms = arms_of(cells)
    comparisons = compare_arms(arms)
    tables = ablation_tables([name for name, _ in axes], arms, comparisons)
    work.write_text("sweep.md", "\n".join(map(to_markdown, tables)))
    work.write_text("sweep.tex", "\n".join(map(to_latex, tables)))
    names = list(dict.fromkeys(name for _, scores in cells for name in scores.values))
    csv_rows = [[*(part.partition("=")[2] for part in c), *(s.means.get(n) for n in names)] for c, s in cells]
    work.write_text("sweep.csv", to_csv([*(name for name, _ in axes), *names], csv_rows))
    for table in tables:
        _show(table)
    published = [
        {ARM: name, **row} for name, arm in sweep.arms.items() for row in published_rows(arm) if beside
    ]
    if published:
        log.show_rows("Published, × 100", aligned(published))
    return {
        "combinations": [
            {"settings": dict(part.split("=", 1) for part in c), "measures": scores.means}
            for c, scores in cells
        ],
        "comparisons": [row.as_json() for row in comparisons],
        "published": published,
        "neighborhood_recall": show_neighborhood_recall(sweep.labels, root, work),
        "examples": show_examples(sweep.recipe.examples, sweep.labels, root, work),
    }


def _show(table: Table) -> None:
    rows = [[cell.text + " *" * cell.is_best for cell in row.cells] for row in table.rows]
    log.show_rows(table.caption, [dict(zip(table.columns, row)) for row in rows])
    for note in table.notes:
        log.note(note.replace("Bold:", "*:"))


def axes_of(settings: SweepConfig) -> list[Axis]:
    """The arms of a sweep, if it is one, and the settings of the grid."""
    names = read_arms(find_recipe(settings.recipe), small=settings.small)
    arms = [(ARM, [f"{ARM}={name}" for name in names])] if names else []
    axes = [*arms, *(parse_axis(text) for text in settings.grid)]
    if not axes:
        raise QontextError(
            "nothing to vary: the recipe has no arms",
            place=settings.recipe,
            remedy="Add --grid step.field=a,b,c, or a [sweep] table.",
        )
    return axes


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
            own[step.name] = json.dumps(
                [step.stage.verb, step.settings, {up: own[up] for up in sorted(step.upstream())}], default=str
            )
            signatures.setdefault(step.name, {})[c] = own[step.name]
    labels: dict[Combination, dict[str, str]] = {c: {} for c in combinations}
    steps: dict[str, Step] = {}
    variants: dict[str, str] = {}
    for c, expanded in recipes.items():
        for step in expanded.steps:
            own_signature = signatures[step.name][c]
            first = next(
                other for other, signature in signatures[step.name].items() if signature == own_signature
            )
            parts = _influences(signatures[step.name], first)
            label = "--".join([step.name, *(_file_name(part, axes) for part in parts)])
            labels[c][step.name] = label
            if variants.setdefault(label, own_signature) != own_signature:
                raise QontextError(
                    f"two variants of the step {step.name!r} have the same name, {label!r}",
                    place=recipe,
                    remedy="Give arms names, and settings values, that differ in letters or digits.",
                )
            steps.setdefault(label, Step(label, step.stage, _renamed(step.settings, labels[c])))
    for place, (name, _) in enumerate(axes):
        if name != ARM and not any(_matters(signature, place) for signature in signatures.values()):
            raise QontextError(f"{name} changes nothing in the recipe", place=recipe)
    of_all = next(iter(recipes.values()))
    arms = {
        part.partition("=")[2]: expanded
        for c, expanded in recipes.items()
        for part in c[:1]
        if axes[0][0] == ARM
    }
    return Sweep(
        Recipe(of_all.title, tuple(steps.values()), of_all.file, examples=of_all.examples), labels, arms
    )


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
            own = dict.fromkeys(
                targets(arms[arm], [change for change in settings if target_of(change) in steps])
            )
            settings = tuple(change for change in settings if target_of(change) in own)
            known |= own
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


def _file_name(part: str, axes: Sequence[Axis]) -> str:
    """``pretrain.steps=2000`` → ``steps=2000``, if no other setting of the grid has that name."""
    field = part.partition("=")[0].rpartition(".")[2]
    is_clear = sum(name.rpartition(".")[2] == field for name, _ in axes) == 1
    if is_clear and not part.startswith(f"{ARM}="):
        part = part.partition(".")[2]
    return re.sub(r"[^\w.=+-]+", "-", part.replace('"', "")).strip("-")


SWEEP = Pipeline(
    verb="sweep",
    config=SweepConfig,
    run=run,
    examples="""
        qontext sweep cot-mae-table-5 --small --set inputs.data=data
        qontext sweep recipe.toml --grid finetune.lr=1e-5,2e-5,5e-5 --out runs/rates
        qontext sweep recipe.toml --grid pretrain.method=mlm,condenser --grid pretrain.seed=1,2,3 --out runs/methods
        qontext sweep recipe.toml --grid 'pretrain.context=["query","near+olap+rand"]' --out runs/contexts
    """,
)
