"""`qontext run`: run the unfinished steps of a recipe, in order, each with a reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from qontext.frame import artifacts, execution, log
from qontext.frame.config import Action, Input, StageConfig
from qontext.frame.errors import QontextError, choose
from qontext.frame.files import make_own_directory
from qontext.frame.parts import PartsConfig, RunsOn
from qontext.frame.stages import Pipeline, Stage
from qontext.workflow.recipe import Recipe, Step, read_recipe
from qontext.workflow.scores import show_scores
from qontext.workflow.tables import called

ABSENT = "not finished"
SHOWN = 8
"""Maximum number of problems to list."""


def check(recipe: Recipe, root: Path, until: str | None = None) -> None:
    """Validate all settings and inputs of a recipe before its first step runs."""
    problems: dict[str, None] = {}  # the arms of a sweep share many
    for step in recipe.steps:
        for problem in _problems(step, root):
            problems.setdefault(problem)
        if step.name == until:
            break
    if problems:
        many = f"{len(problems)} problems: " if len(problems) > 1 else ""
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        listed = "; ".join(list(problems)[:SHOWN])
        raise QontextError(
            f"the recipe cannot run: {many}{listed}{more}",
            place=called(Path(recipe.file)) if recipe.file else None,
        )


def _problems(step: Step, root: Path) -> Iterator[str]:
    """The problems in a step's settings and inputs that can be detected before earlier steps have run."""
    from qontext.workflow.preflight import problems_of

    try:
        configured = step.configure(root)
    except QontextError as error:
        yield error.message
        return
    for problem, place in problems_of(configured, step.reads(root)):
        yield f"{step.stage.verb} (step {step.name!r}): {problem} ({place})"


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
        heading = f"[{number}/{len(recipe.steps)}] {step.name}"
        reason = "already done" if state == "done" else "" if why == ABSENT else why
        log.note(f"{heading}: {reason}" if reason else heading)
        started = time.monotonic()
        summary = _run(step, root, on, done=state == "done")
        rows.append(
            {
                "step": step.name,
                "state": "done before" if state == "done" else "done now",
                "why": why,
                "seconds": round(time.monotonic() - started, 1),
                "path": str(root / step.name),
                "summary": summary,
            }
        )
        if step.name == until:
            break
    return rows


def _run(step: Step, root: Path, on: str, *, done: bool) -> Any:
    """Run a step, if it is not done; returns its summary."""
    if done:
        artifact = artifacts.open_artifact(root / step.name)
    else:
        settings = _placed(step.configure(root), on)
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


def _placed(settings: StageConfig, on: str) -> StageConfig:
    if isinstance(settings, PartsConfig) and settings.is_divisible and "on" not in settings.model_fields_set:
        return settings.model_copy(update={"on": on})
    return settings


class RunConfig(StageConfig):
    recipe: Annotated[str, Input(positional=True)]
    """Recipe: a TOML file, or the name of a shipped one (see: qontext recipes)."""

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
    recipe = read_recipe(settings.recipe, settings.set, small=settings.small, is_foreign=True)
    root = Path(settings.out or run_folder(settings.recipe, settings.small))
    if settings.until is not None:
        choose(settings.until, [step.name for step in recipe.steps], "step")
    if settings.dry_run:
        check(recipe, root, settings.until)
        planned = plan(recipe, root, settings.until)
        rows = [{"step": step.name, "state": state, "why": why} for step, state, why in planned]
    else:
        work = artifacts.open_root(root)
        if not work.rank:
            work.write_text("recipe.toml", recipe.dump())
        rows = run_recipe(recipe, root, settings.until, settings.on)
    log.show_rows(
        f"{recipe.title} → {root}", [{k: v for k, v in row.items() if k != "summary"} for row in rows]
    )
    result = {"recipe": recipe.title, "out": str(root), "steps": rows}
    if settings.dry_run:
        return result
    return {**result, "scores": show_scores(recipe, rows, beside=not settings.small)}


def run_folder(recipe: str, small: bool) -> Path:
    """The default output directory of a recipe or sweep."""
    return Path("runs") / (Path(recipe).stem + ("-small" if small else ""))


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


RUN = Pipeline(
    verb="run",
    config=RunConfig,
    run=run,
    examples="""
        qontext run laptop --set inputs.documents=docs.jsonl --set inputs.encoder=encoder --dry-run
        qontext run recipe.toml --out runs/recipe
        qontext run recipe.toml --set pretrain.steps=2000 --until pretrain
        qontext run cot-mae-msmarco --small --set inputs.data=data
        qontext run recipe.toml --on ray --out runs/recipe
    """,
)
