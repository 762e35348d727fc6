"""`qontext run`: run the unfinished steps of a recipe, in order, each with a reason. A recipe with arms, or with a grid of
settings, is a sweep: all its variants are one larger recipe (`sweep`), whose results are a table (`ablation`)."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from qontext.frame import artifacts, execution, log
from qontext.frame.config import Action, Input, StageConfig, existing
from qontext.frame.errors import QontextError, choose
from qontext.frame.files import make_own_directory
from qontext.frame.inputs import check_input, named_inputs
from qontext.frame.parts import PartsConfig, RunsOn
from qontext.frame.stages import Pipeline, Stage
from qontext.workflow.recipe import Recipe, Step, read_recipe
from qontext.workflow.sweep import axes_of, expand
from qontext.workflow.tables import find_recipe, read_arms

ABSENT = "not finished"
FILES = {
    "data",
    "queries",
    "passages",
    "groups",
    "run",
    "runs",
    "index",
    "texts",
    "dev",
    "probe",
    "teacher",
    "answers",
}
"""The inputs that are files or folders; others may be names of models, sources and benchmarks."""


def check(recipe: Recipe, root: Path, until: str | None = None) -> None:
    """Validate all settings of a recipe, and that its inputs exist, before its first step runs."""
    problems: dict[str, None] = {}  # the arms of a sweep share many
    for step in recipe.steps:
        problems |= dict.fromkeys(_problems(step, root))
        if step.name == until:
            break
    if problems:
        many = f"{len(problems)} problems: " if len(problems) > 1 else ""
        raise QontextError(f"the recipe cannot run: {many}{'; '.join(problems)}", place=recipe.file or None)


def _problems(step: Step, root: Path) -> Iterator[str]:
    """The problems in a step's settings, and the inputs that are not there and that no earlier step writes."""
    try:
        settings = step.configure(root)
    except QontextError as error:
        yield error.message
        return
    coming = {str(root / value[1:]) for value in step.references()}
    for field, value in named_inputs(settings):
        if value in coming:
            continue
        try:
            name = field.partition("[")[0]
            if check_input(value, name) is None and name in FILES:
                existing(value, name)
        except QontextError as error:
            yield f"{step.stage.verb} (step {step.name!r}): {error.message} ({error.place or value})"


def plan(recipe: Recipe, root: Path, until: str | None = None) -> Iterator[tuple[Step, str, str]]:
    """For each step up to `until`: its state ('done' or the action), and the reason."""
    waiting: set[str] = set()
    for step in recipe.steps:
        behind = sorted(step.upstream() & waiting)
        if behind:
            state, why = "will run", f"reads the output of {', '.join(behind)}"
        else:
            state, why = _state(step, root)
        if state != "done":
            waiting.add(step.name)
        yield step, state, why
        if step.name == until:
            return


def run_recipe(
    recipe: Recipe, root: Path, until: str | None = None, on: str = "local"
) -> list[dict[str, Any]]:
    """Run every unfinished step, in order; returns a row per step. The recipe is validated first.

    `on` is where steps that consist of parts run, unless they have that setting themselves.
    """
    check(recipe, root, until)
    rows = []
    for number, step in enumerate(recipe.steps, 1):
        state, why = _state(step, root)
        reason = "already done" if state == "done" else "" if why == ABSENT else why
        log.note(f"[{number}/{len(recipe.steps)}] {step.name}" + (f": {reason}" if reason else ""))
        started = time.monotonic()
        rows.append(
            {
                "step": step.name,
                "state": "done before" if state == "done" else "done now",
                "why": why,
                "summary": _run(step, root, on, done=state == "done"),
                "seconds": round(time.monotonic() - started, 1),
                "path": str(root / step.name),
            }
        )
        if step.name == until:
            break
    return rows


def _run(step: Step, root: Path, on: str, *, done: bool) -> Any:
    """Run a step, if it is not done; returns its summary."""
    if done:
        return artifacts.open_artifact(root / step.name).summary
    settings = step.configure(root)
    if isinstance(settings, PartsConfig) and settings.is_divisible and "on" not in settings.model_fields_set:
        settings = settings.model_copy(update={"on": on})
    if not isinstance(step.stage, Stage):
        return step.stage.run(settings)
    make_own_directory(root / step.name)
    artifact = execution.execute(step.stage, settings, root / step.name, overwrite=True)
    if not artifact.digest:
        raise QontextError(
            "other shards of this step are not done",
            place=root / step.name,
            remedy="Run the same command again once they are.",
        )
    return artifact.summary


def _state(step: Step, root: Path) -> tuple[str, str]:
    if not isinstance(step.stage, Stage):
        return "will run", "shows its result each time"
    claim = execution.claim_of(step.stage, step.configure(root))
    status, artifact = artifacts.state(root / step.name, claim["key"])
    if status == "done":
        return "done", ""
    if status == "stale":
        assert artifact is not None
        return "will run", f"changed: {artifacts.differences(artifact.meta, claim)}"
    return "will run", {"absent": ABSENT, "interrupted": "interrupted, resuming"}.get(status, status)


class RunConfig(StageConfig):
    recipe: Annotated[str, Input(positional=True)]
    """Recipe or sweep: a TOML file, or the name of a shipped one (see: qontext recipes)."""

    grid: tuple[str, ...] = ()
    """A setting and its values, as step.field=a,b,c or inputs.name=a,b,c, or as a list if values contain
    commas: step.field=["0,1","10,11"]. If repeated, all combinations are run, for every arm of a sweep, and the
    table's results are averaged over the values of a field named seed."""

    out: str | None = None
    """Directory for the outputs of all steps. Default: runs/ and the recipe's name, with -small for the small
    profile."""

    set: tuple[str, ...] = ()
    """Change a setting, as step.field=value or inputs.name=value; step.field= restores its default. May be
    repeated."""

    small: bool = False
    """Run the recipe's small profile: every step, on any labeled set in BEIR's layout, in minutes on two CPU
    cores. Its results are not meaningful."""

    on: RunsOn = "local"
    """Runner of steps that are made of parts: local, ray, HOST:PORT or ray://HOST:PORT; see 'qontext encode'."""

    until: Annotated[str | None, Action()] = None
    """Stop after this step."""

    dry_run: Annotated[bool, Action()] = False
    """Only show the steps that would run, and why."""


def run(settings: RunConfig) -> dict[str, Any]:
    small = settings.small
    axes = axes_of(read_arms(find_recipe(settings.recipe), small=small), settings.grid)
    sweep = expand(settings.recipe, settings.set, axes, small=small) if axes else None
    recipe = (
        sweep.recipe if sweep else read_recipe(settings.recipe, settings.set, small=small, is_foreign=True)
    )
    root = Path(settings.out or f"runs/{Path(settings.recipe).stem}{'-small' if small else ''}")
    if settings.until is not None:
        choose(settings.until, [step.name for step in recipe.steps], "step")
    result: dict[str, Any] = {"recipe": recipe.title, "out": str(root)}
    check(recipe, root, settings.until)
    if settings.dry_run:
        planned = plan(recipe, root, settings.until)
        rows = [{"step": step.name, "state": state, "why": why} for step, state, why in planned]
        log.show_rows(f"{recipe.title} → {root}", rows)
        return {**result, "steps": rows}
    work = artifacts.open_root(root)
    if not work.rank:
        work.write_text("recipe.toml", recipe.dump())
    rows = run_recipe(recipe, root, settings.until, settings.on)
    log.show_rows(
        f"{recipe.title} → {root}", [{k: v for k, v in row.items() if k != "summary"} for row in rows]
    )
    result["steps"] = rows
    if sweep is None:
        return {**result, "scores": show_scores(recipe, rows, beside=not small)}
    if settings.until is not None:
        return result
    from qontext.workflow.ablation import show_results

    figures = [
        {"arm": name, **row} for name, arm in sweep.arms.items() for row in published_rows(arm) if not small
    ]
    log.show_rows("Published, × 100", aligned(figures))
    return {
        **result,
        **show_results([name for name, _ in axes], sweep.labels, root, work),
        "published": figures,
    }


def show_scores(recipe: Recipe, rows: Sequence[dict[str, Any]], *, beside: bool) -> list[dict[str, Any]]:
    """A row per evaluation of a recipe, × 100; then, with `beside`, the published systems."""
    evaluating = {step.name for step in recipe.steps if step.stage.verb == "evaluate"}
    scores = [
        {"system": row["step"], "benchmark": row["summary"]["benchmark"]}
        | {name: round(100 * value, 1) for name, value in row["summary"]["measures"].items()}
        for row in rows
        if row["step"] in evaluating
    ]
    if scores and beside:
        scores += published_rows(recipe)
    log.show_rows("Scores, × 100", aligned(scores))
    return scores


def published_rows(recipe: Recipe) -> list[dict[str, Any]]:
    """A row for each published system and benchmark that the recipe reproduces."""
    from qontext.evaluation import benchmarks

    patterns = recipe.benchmarks or ("*",)
    return [
        {"system": f"published: {row.system}", "benchmark": benchmark, **figures}
        for system in recipe.published
        for row in benchmarks.named(system)
        for benchmark, figures in row.figures.items()
        if any(fnmatch.fnmatch(benchmark, pattern) for pattern in patterns)
    ]


def aligned(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the columns of all of them."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return [{key: row.get(key) for key in columns} for row in rows]


RUN = Pipeline(
    verb="run",
    config=RunConfig,
    run=run,
    examples="""
        qontext run laptop --set inputs.documents=docs.jsonl --set inputs.encoder=encoder --dry-run
        qontext run recipe.toml --out runs/recipe
        qontext run recipe.toml --set pretrain.steps=2000 --until pretrain
        qontext run cot-mae-msmarco --small --set inputs.data=data
        qontext run cot-mae-table-5 --small --set inputs.data=data
        qontext run recipe.toml --grid finetune.lr=1e-5,2e-5,5e-5 --grid pretrain.seed=1,2,3 --out runs/rates
        qontext run recipe.toml --on ray --out runs/recipe
    """,
)
