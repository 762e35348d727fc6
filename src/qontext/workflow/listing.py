"""`qontext recipes`: list the shipped recipes and sweeps, or show one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from qontext.frame import log
from qontext.frame.config import Input, StageConfig
from qontext.frame.stages import Report
from qontext.workflow.cost import estimated_hours
from qontext.workflow.recipe import Recipe, demands, describe_recipe
from qontext.workflow.scores import published_rows
from qontext.workflow.tables import (
    INPUTS,
    SHIPPED,
    find_recipe,
    missing_inputs,
    read_arms,
    read_tables,
    shipped,
    shipped_sweeps,
)


class RecipesConfig(StageConfig):
    recipe: Annotated[str | None, Input(positional=True, by_content=False)] = None
    """Recipe or sweep to show, including everything that it extends: a name or a TOML file. Default: list all."""

    small: bool = False
    """Show the recipe's small profile."""


def run(settings: RecipesConfig) -> dict[str, Any]:
    if settings.recipe is None:
        return _list()
    file = find_recipe(settings.recipe)
    if arms := read_arms(file, small=settings.small):
        return _show_sweep(settings.recipe, arms, settings.small)
    return _show(settings.recipe, settings.small)


def _list() -> dict[str, Any]:
    rows, steps = [], {}
    for file in shipped():
        recipe = describe_recipe(str(file))
        steps[file.stem] = ", ".join(step.name for step in recipe.steps)
        needs = ", ".join(missing_inputs(read_tables(file)))
        rows.append({"name": file.stem, "title": recipe.title, "needs": needs, "published": _main(recipe)})
    log.show_rows("Recipes", rows)
    sweeps = [_sweep(file) for file in shipped_sweeps()]
    log.show_rows("Sweeps", sweeps)
    log.note(
        "Show one: qontext recipes NAME. Run a recipe: qontext run NAME --set inputs.documents=…; a sweep: "
        "qontext sweep NAME."
    )
    return {
        "folder": str(SHIPPED),
        "recipes": [{**row, "steps": steps[row["name"]]} for row in rows],
        "sweeps": sweeps,
    }


def _sweep(file: Path) -> dict[str, Any]:
    """The row of a sweep."""
    arms = read_arms(file)
    needs = dict.fromkeys(name for arm in arms for name in missing_inputs(read_tables(file, arm=arm)))
    title = describe_recipe(str(file), arm=arms[0]).title
    return {"name": file.stem, "title": title, "needs": ", ".join(needs), "arms": len(arms)}


def _show_sweep(name: str, arms: list[str], small: bool) -> dict[str, Any]:
    """Show each arm with what it reproduces, and the recipe of the first arm."""
    file = find_recipe(name)
    recipes = {arm: describe_recipe(name, small=small, arm=arm) for arm in arms}
    tables = [read_tables(file, small=small, arm=arm) for arm in arms]
    first = recipes[arms[0]]
    if log.is_shown():
        with log.results():
            print(f"# The arm {arms[0]!r}\n\n{first.dump()}")
    rows = [{"arm": arm, "published": "" if small else _main(recipe)} for arm, recipe in recipes.items()]
    log.show_rows("Arms", rows)
    return {
        "name": name,
        "title": first.title,
        "file": str(file),
        "needs": list(dict.fromkeys(needed for table in tables for needed in missing_inputs(table))),
        "cost": first.cost,
        "arms": [{**row, "recipe": recipes[row["arm"]].dump()} for row in rows],
    }


def _show(name: str, small: bool) -> dict[str, Any]:
    recipe = describe_recipe(name, small=small)
    tables = read_tables(find_recipe(name), small=small)
    figures = [] if small else published_rows(recipe)
    if log.is_shown():
        with log.results():
            print(recipe.dump())
    if asked := demands(tables, find_recipe(name)):
        log.note(f"To run, it asks to {'; '.join(demand.does for demand in asked)}. See SECURITY.md.")
    if figures:
        columns = list(dict.fromkeys(key for row in figures for key in row))
        log.show_rows("Published", [{key: row.get(key) for key in columns} for row in figures])
    hours = {} if small or not recipe.cost else estimated_hours(recipe)
    rows = [{"step": step, "1 H100": one, "8 H100s": round(one / 8, 1)} for step, one in hours.items()]
    if rows:
        log.show_rows("Hours, estimated from stated rates, not measured", rows)
    return {
        "name": name,
        "title": recipe.title,
        "file": recipe.file,
        "needs": missing_inputs(tables),
        "inputs": tables[INPUTS],
        "published": figures,
        "cost": recipe.cost,
        "estimated_h100_hours": hours,
        "asks": [demand.does for demand in asked],
        "recipe": recipe.dump(),
    }


def _main(recipe: Recipe) -> str:
    """The first result of the last published system, such as 'MRR@10 40.2'."""
    rows = published_rows(recipe)
    if not rows:
        return ""
    last = next(row for row in rows if row["system"] == rows[-1]["system"])
    measure = next(key for key in last if key not in ("system", "benchmark"))
    return f"{measure} {last[measure]}"


RECIPES = Report(
    verb="recipes",
    config=RecipesConfig,
    run=run,
    examples="""
        qontext recipes
        qontext recipes cot-mae-msmarco
        qontext recipes cot-mae-table-5
    """,
)
