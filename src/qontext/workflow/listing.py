"""`qontext recipes`: list the shipped recipes and sweeps, or show one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from qontext.frame import log
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import visible
from qontext.frame.stages import Report
from qontext.workflow.recipe import Recipe, Step, demands, describe_recipe
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
    is_of_a_paper = find_recipe(name).parent == SHIPPED and bool(recipe.cost or recipe.published)
    hours = estimated_hours(recipe) if is_of_a_paper and not small else {}
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


SHAPES = {"large": (24, 1024), "distil": (6, 768), "": (12, 768)}
"""A part of a model's name → its layers and width."""
PEAK, SHARE = 989e12, 0.4
QUERY_TOKENS, LENGTH = 16, 144
OF_DOCUMENTS, OF_COLLECTION = 32_000_000, 8_800_000
SIZES = {
    "nq": (60_000, 21_000_000),
    "triviaqa": (60_000, 21_000_000),
    "msmarco-document/*": (367_000, 3_200_000),
}
"""Benchmark → training questions and passages; of all others, those of MS MARCO's passages."""
OF_MS_MARCO = (500_000, OF_COLLECTION)


def estimated_hours(recipe: Recipe) -> dict[str, float]:
    """Step → hours on one H100, of steps of a shipped recipe that train, encode or generate by T5, from stated rates.

    FLOPs per token  = 2 · P + 4 · L · T · H         forward; P = 12 · L · H², of BERT-base and T5-base L = 12, H = 768
    pre-training     = 3 · steps · tokens per step   forward and backward of the encoder; 4 with the gradient cache
    fine-tuning      = 3 · questions · tokens of a question and its passages, in all epochs; of a cross-encoder, of its pairs
    encoding         = passages · T                  forward
    generation       = passages · (T + 4/3 · queries · Q) forward; the decoder has a third more weights
    hours            = FLOPs / (40 % of 989 TFLOP/s, the H100's bf16 peak) / 3600

    T is the length of a text, which is taken to be full; Q = 16 tokens of a query; 10 passages per document of MS MARCO's
    3.2 million, or the 8.8 million passages of its collection. Left out are heads, decoders of pre-training, teachers,
    training on queries without judgments, and the memory traffic that bounds decoding.
    """
    questions, passages = SIZES.get(next(iter(recipe.benchmarks), ""), OF_MS_MARCO)
    steps = {f"@{step.name}": step for step in recipe.steps}
    hours = {}
    for step in recipe.steps:
        verb, settings, flops = step.stage.verb, step.settings, 0.0
        if verb == "pretrain" and settings.get("steps"):
            flops = _pretraining(step.configure(Path("runs")))
        elif verb == "generate" and settings.get("generator") == "t5":
            tokens = LENGTH + 4 / 3 * QUERY_TOKENS * int(settings["per_passage"])
            generated = OF_DOCUMENTS if settings["passages"] == "@split" else OF_COLLECTION
            flops = generated * tokens * _per_token(LENGTH)
        elif verb in ("finetune", "train-reranker") and _are_judged(steps.get(settings["groups"])):
            flops = _finetuning(step, questions, _shape(recipe, settings["encoder"]))
        elif verb == "encode" and (length := _length_of(steps.get(settings["encoder"]))):
            flops = passages * length * _per_token(length, _shape(recipe, settings["encoder"]))
        if flops:
            hours[step.name] = round(flops / (PEAK * SHARE) / 3600, 1)
    return hours


def _per_token(length: int, shape: tuple[int, int] = SHAPES[""]) -> float:
    layers, width = shape
    return 2 * 12 * layers * width**2 + 4 * layers * length * width


def _shape(recipe: Recipe, model: str) -> tuple[int, int]:
    """The layers and width of a model, which may be an input or come from a step."""
    encoders = {f"@{step.name}": step.settings.get("encoder", "") for step in recipe.steps}
    known = {**encoders, **{f"${name}": str(value) for name, value in recipe.inputs.items()}}
    while model in known:
        model = known[model]
    return next(shape for part, shape in SHAPES.items() if part in model)


def _are_judged(groups: Step | None) -> bool:
    """False if a model labeled the queries of these groups, whose number is not known."""
    return groups is None or not groups.settings.get("qrels", "").startswith("@")


def _length_of(retriever: Step | None) -> int:
    """The tokens of a passage that a fine-tuned retriever reads; 0 for any other encoder."""
    if retriever is None or retriever.stage.verb != "finetune":
        return 0
    return int(_setting(retriever, "passage_length"))


def _setting(step: Step, name: str) -> Any:
    return step.settings.get(name, step.stage.config.model_fields[name].default)


def _finetuning(step: Step, questions: int, shape: tuple[int, int]) -> float:
    get = partial(_setting, step)
    seen = get("steps") * get("batch_size") if get("steps") else get("epochs") * questions
    if step.stage.verb == "train-reranker":
        texts = [(get("candidates"), get("max_length"))]
    else:
        texts = [(1, get("query_length")), (get("passages_per_query"), get("passage_length"))]
    return float(3 * seen * sum(count * length * _per_token(length, shape) for count, length in texts))


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
