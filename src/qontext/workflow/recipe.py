"""A recipe: a TOML file whose tables are stages. Running it does what is not done yet, and says why.

    [recipe]
    title = "what it is for"

    [inputs]                    # values that several steps share; --set inputs.corpus=... replaces one
    corpus = "pydocs:"

    [split]                     # a step; its verb is its name, unless `verb = "..."` says otherwise
    source = "$corpus"

    [tokens]
    passages = "@split"         # the directory that the step `split` wrote; @step/part is a part of it

A step is done anew when its settings or the content of what it reads changed, and only then.
"""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from qontext import artifacts, config, log, stages
from qontext.config import Input, StageConfig
from qontext.disk import raise_disk_error
from qontext.errors import QontextError, choose
from qontext.stages import Command, Stage

ABSENT = "not done yet"
SHIPPED = Path(__file__).parent.parent / "recipes"


@dataclass(frozen=True)
class Step:
    """One table of a recipe: a name, a stage and its settings, still with `@step` references."""

    name: str
    stage: Stage[Any]
    settings: dict[str, Any]

    def upstream(self) -> set[str]:
        """The steps whose output this one reads."""
        return {
            value[1:].partition("/")[0]
            for value in _flat(self.settings.values())
            if isinstance(value, str) and value[:1] == "@"
        }

    def configure(self, root: Path) -> StageConfig:
        """The configuration, with references turned into the directories under `root`."""
        settings = {name: _resolve(value, root) for name, value in self.settings.items()}
        return self.stage.config.make(settings, where=f"{self.stage.verb} (step {self.name!r})")  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Recipe:
    title: str
    steps: tuple[Step, ...]

    def dump(self) -> str:
        """The recipe as TOML, with every replacement made."""
        lines = ["[recipe]", f"title = {json.dumps(self.title)}", ""]
        for step in self.steps:
            name = step.name if re.fullmatch(r"[\w-]+", step.name, re.ASCII) else json.dumps(step.name)
            lines += [f"[{name}]", f'verb = "{step.stage.verb}"']
            lines += [
                f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}"
                for name, value in step.settings.items()
            ]
            lines.append("")
        return "\n".join(lines)


def read_recipe(path: str, changes: tuple[str, ...] = ()) -> Recipe:
    """Parse and check a recipe: a file, or the name of a shipped one. `changes` are ``step.field=value``."""
    file = _find(path)
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise QontextError(f"not a valid recipe: {error}", place=file) from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise QontextError(f"{name!r} should be a table, such as [split], not a value", place=file)
        if not re.fullmatch(r"\w[\w.,=+-]*", name):
            raise QontextError(
                f"a step's name is that of its directory, so {name!r} cannot be one",
                place=file,
                remedy="Use letters, digits, - and _.",
            )
    for change in changes:
        name, value = config.parse_assignment(change)
        table, _, field = name.partition(".")
        tables.setdefault(choose(table, tables, f"step of {file.name}"), {})[field] = value
    about, inputs = tables.pop("recipe", {}), tables.pop("inputs", {})
    steps: list[Step] = []
    for name, table in tables.items():
        settings = {field: _fill(value, inputs, file) for field, value in table.items() if field != "verb"}
        verb = choose(str(table.get("verb", name)), stages.VERBS, f"verb (of step {name!r} in {file.name})")
        stage = stages.load(verb)
        if isinstance(stage, Command):
            raise QontextError(f"the verb {verb!r} writes nothing, so it is no step of a recipe", place=file)
        step = Step(name, stage, settings)
        for needed in step.upstream():
            choose(needed, [s.name for s in steps], f"earlier step, read by [{name}],")
        for field in settings:
            choose(field, stage.config.model_fields, f"setting of [{name}] in {file.name}")
        steps.append(step)
    if not steps:
        raise QontextError("the recipe has no steps", place=file)
    return Recipe(str(about.get("title", file.stem)), tuple(steps))


def plan(recipe: Recipe, root: Path) -> Iterator[tuple[Step, str, str]]:
    """For each step: its state ('done' or what will happen), and why."""
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


def run_recipe(recipe: Recipe, root: Path, until: str | None = None) -> list[dict[str, Any]]:
    """Run every step that is not done, in order; gives a row per step."""
    rows = []
    for number, step in enumerate(recipe.steps, 1):
        state, why = _state(step, root)
        heading = f"[{number}/{len(recipe.steps)}] {step.name}"
        told = "already done" if state == "done" else "" if why == ABSENT else why
        log.note(f"{heading}: {told}" if told else heading)
        started = time.monotonic()
        if state == "done":
            artifact = artifacts.open_artifact(root / step.name)
        else:
            artifact = stages.execute(step.stage, step.configure(root), root / step.name, overwrite=True)
        rows.append(
            {
                "step": step.name,
                "state": "done before" if state == "done" else "done now",
                "why": why,
                "seconds": round(time.monotonic() - started, 1),
                "path": str(artifact.path),
                "summary": artifact.summary,
            }
        )
        if step.name == until:
            break
    return rows


class RunConfig(StageConfig):
    recipe: Annotated[str, Input(positional=True)]
    """The recipe: a TOML file, or the name of one that comes with the package (see: qontext recipes)."""

    out: str | None = None
    """The directory for all steps' outputs. Default: runs/ and the recipe's name."""

    set: tuple[str, ...] = ()
    """Change a setting, as step.field=value or inputs.name=value; may be given several times."""

    until: str | None = None
    """Stop after this step."""

    dry_run: bool = False
    """Only say what would be done, and why."""


def run(settings: RunConfig) -> dict[str, Any]:
    recipe = read_recipe(settings.recipe, settings.set)
    root = Path(settings.out or Path("runs") / Path(settings.recipe).stem)
    if settings.until is not None:
        choose(settings.until, [step.name for step in recipe.steps], "step")
    if settings.dry_run:
        rows = [{"step": step.name, "state": state, "why": why} for step, state, why in plan(recipe, root)]
    else:
        try:
            root.mkdir(parents=True, exist_ok=True)
            (root / "recipe.toml").write_text(recipe.dump(), encoding="utf-8")
        except OSError as error:
            raise_disk_error(error, root, anyway=True)
        rows = run_recipe(recipe, root, settings.until)
    log.show_rows(
        f"{recipe.title} → {root}", [{k: v for k, v in row.items() if k != "summary"} for row in rows]
    )
    return {"recipe": recipe.title, "out": str(root), "steps": rows}


class RecipesConfig(StageConfig):
    pass


def list_recipes(settings: RecipesConfig) -> dict[str, Any]:
    rows = []
    for file in sorted(SHIPPED.glob("*.toml"), key=lambda path: path.stem):
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        steps = [name for name in tables if name not in ("recipe", "inputs")]
        rows.append({"name": file.stem, "title": tables["recipe"]["title"], "steps": ", ".join(steps)})
    log.show_rows("Recipes", rows)
    log.note("Run one: qontext run NAME. Read one: qontext recipes --json gives the folder.")
    return {"folder": str(SHIPPED), "recipes": rows}


def _find(path: str) -> Path:
    file = Path(path)
    if file.is_file():
        return file
    if file.suffix or len(file.parts) > 1:
        config.existing(file, "the recipe")
    return SHIPPED / f"{choose(path, [p.stem for p in sorted(SHIPPED.glob('*.toml'))], 'recipe')}.toml"


def _state(step: Step, root: Path) -> tuple[str, str]:
    claim = stages.claim_of(step.stage, step.configure(root))
    found, made = artifacts.state(root / step.name, claim["key"])
    if found == "done":
        return "done", ""
    if found == "stale":
        assert made is not None
        return "will run", f"changed: {artifacts.differences(made.meta, claim)}"
    return "will run", {"absent": ABSENT, "interrupted": "was interrupted, resumes"}.get(found, found)


def _fill(value: Any, inputs: dict[str, Any], file: Path) -> Any:
    if isinstance(value, list):
        return [_fill(item, inputs, file) for item in value]
    if isinstance(value, str) and value.startswith("$"):
        name = choose(value[1:], inputs, f"input of {file.name}")
        if inputs[name] == "":
            raise QontextError(
                f"the recipe needs a value for {name!r}", place=file, remedy=f"Add: --set inputs.{name}=…"
            )
        return inputs[name]
    return value


def _resolve(value: Any, root: Path) -> Any:
    if isinstance(value, list):
        return tuple(_resolve(item, root) for item in value)
    return str(root / value[1:]) if isinstance(value, str) and value.startswith("@") else value


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        yield from value if isinstance(value, list) else [value]


RUN = Command(
    verb="run",
    config=RunConfig,
    run=run,
    examples="""
        qontext run laptop --dry-run
        qontext run my-recipe.toml --out runs/mine
        qontext run my-recipe.toml --set pretrain.steps=2000 --until pretrain
    """,
)
RECIPES = Command(verb="recipes", config=RecipesConfig, run=list_recipes, examples="qontext recipes")
