"""`qontext recipes`: list the shipped recipes and sweeps, or show one."""

from __future__ import annotations

from typing import Annotated, Any

from qontext.frame import log
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import visible
from qontext.frame.stages import Report
from qontext.workflow.recipe import Recipe, demands, describe_recipe
from qontext.workflow.run import aligned, published_rows
from qontext.workflow.tables import (
    INPUTS,
    SHIPPED,
    find_recipe,
    missing_inputs,
    read_arms,
    read_tables,
    shipped,
)


class RecipesConfig(StageConfig):
    recipe: Annotated[str | None, Input(positional=True, by_content=False)] = None
    """Recipe or sweep to show, including everything that it extends: a name or a TOML file. Default: list all."""

    small: bool = False
    """Show the recipe's small profile."""


def run(settings: RecipesConfig) -> dict[str, Any]:
    return _list() if settings.recipe is None else _show(settings.recipe, settings.small)


def _list() -> dict[str, Any]:
    rows = []
    for file in (*shipped(), *shipped("sweeps")):
        arms: list[Any] = read_arms(file)
        recipes = [describe_recipe(str(file), arm=arm) for arm in arms or [None]]
        needs = dict.fromkeys(
            name for arm in arms or [None] for name in missing_inputs(read_tables(file, arm=arm))
        )
        row = {"name": file.stem, "title": recipes[0].title, "needs": ", ".join(needs)}
        rows.append({**row, "arms": len(arms) or "", "published": "" if arms else _main(recipes[0])})
    log.show_rows("Recipes, and sweeps of several arms", rows)
    log.note("Show one: qontext recipes NAME. Run it: qontext run NAME --set inputs.documents=…")
    return {"folder": str(SHIPPED), "recipes": rows}


def _show(name: str, small: bool) -> dict[str, Any]:
    """Show a recipe, or the recipe of a sweep's first arm, and what each arm reproduces."""
    file = find_recipe(name)
    arms: list[Any] = read_arms(file, small=small) or [None]
    recipes = [describe_recipe(name, small=small, arm=arm) for arm in arms]
    tables = [read_tables(file, small=small, arm=arm) for arm in arms]
    first = recipes[0]
    if log.is_shown():
        with log.results():
            print(f"# The arm {arms[0]!r}\n" if arms[0] else "", visible(first.dump()), sep="")
    if asked := demands(tables[0], file):
        # Also where notes are not shown: that is why one looks at it first.
        log.warn(f"to run, it asks to {'; '.join(demand.does for demand in asked)}. See SECURITY.md.")
    figures = [
        {**({"arm": arm} if arm else {}), **row}
        for arm, recipe in zip(arms, recipes)
        for row in published_rows(recipe)
        if not small
    ]
    if figures:
        log.show_rows("Published", aligned(figures))
    return {
        "name": name,
        "title": first.title,
        "file": str(file),
        "needs": list(dict.fromkeys(needed for table in tables for needed in missing_inputs(table))),
        "inputs": tables[0][INPUTS],
        "published": figures,
        "cost": first.cost,
        "asks": [demand.does for demand in asked],
        "recipe": first.dump(),
        **({"arms": {arm: recipe.dump() for arm, recipe in zip(arms, recipes)}} if arms[0] else {}),
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
