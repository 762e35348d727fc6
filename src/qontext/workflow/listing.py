"""`qontext recipes`: list the shipped recipes and sweeps, or show one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from qontext.frame import log
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import visible
from qontext.frame.stages import Report
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
            print(f"# The arm {arms[0]!r}\n\n{visible(first.dump())}")
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
            print(visible(recipe.dump()))
    if asked := demands(tables, find_recipe(name)):
        # Also where notes are not shown: that is why one looks at it first.
        log.warn(f"to run, it asks to {'; '.join(demand.does for demand in asked)}. See SECURITY.md.")
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


LAYERS, WIDTH = 12, 768
PEAK, SHARE = 989e12, 0.4
QUERY_TOKENS, LENGTH = 16, 144
OF_DOCUMENTS, OF_COLLECTION = 32_000_000, 8_800_000


def estimated_hours(recipe: Recipe) -> dict[str, float]:
    """Step → hours on one H100, of pre-trainings with a number of steps and of generation by T5, from stated rates.

    FLOPs per token  = 2 · P + 4 · L · T · H         forward, of BERT-base and T5-base: P = 12 · L · H², L = 12, H = 768
    pre-training     = 3 · steps · tokens per step   forward and backward of the encoder; 4 with the gradient cache
    generation       = passages · (T + 4/3 · queries · Q) forward; the decoder has a third more weights
    hours            = FLOPs / (40 % of 989 TFLOP/s, the H100's bf16 peak) / 3600

    T is the length of a passage, which is taken to be full; Q = 16 tokens of a query; 10 passages per document of MS MARCO's
    3.2 million, or the 8.8 million passages of its collection. Heads, decoders of pre-training, and the memory traffic that
    bounds decoding are left out: these are lower bounds.
    """
    hours = {}
    for step in recipe.steps:
        flops = 0.0
        if step.stage.verb == "pretrain" and step.settings.get("steps"):
            flops = _pretraining(step.configure(Path("runs")))
        elif step.stage.verb == "generate" and step.settings.get("generator") == "t5":
            tokens = LENGTH + 4 / 3 * QUERY_TOKENS * int(step.settings["per_passage"])
            passages = OF_DOCUMENTS if step.settings["passages"] == "@split" else OF_COLLECTION
            flops = passages * tokens * _per_token(LENGTH)
        if flops:
            hours[step.name] = round(flops / (PEAK * SHARE) / 3600, 1)
    return hours


def _per_token(length: int) -> float:
    return 2 * 12 * LAYERS * WIDTH**2 + 4 * LAYERS * length * WIDTH


def _pretraining(config: Any) -> float:
    length, tokens = config.max_tokens, config.max_tokens
    if config.layout().encode == "both":
        tokens += QUERY_TOKENS if config.context_name() == "query" else length
    passes = 4 if config.gradient_cache == "on" else 3
    return float(passes * config.steps * config.batch_size * tokens * _per_token(length))


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
