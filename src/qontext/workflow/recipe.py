"""A recipe: a TOML file whose tables are stages. Running it runs the steps that are not finished, each with a reason.

    [recipe]
    title = "what it is for"
    extends = "base"            # a shipped recipe or a file beside this one, whose tables these override
    without = ["filter"]        # steps of it to leave out

    [inputs]                    # values that several steps share; --set inputs.corpus=... replaces one
    corpus = "pydocs:"

    [split]                     # a step; its verb is its name, unless `verb = "..."` says otherwise
    source = "$corpus"          # an input
    seed = ""                   # of an extended recipe: back to the default

    [tokens]
    passages = "@split"         # the directory that the step `split` wrote; @step/part is a part of it

    [sweep."two layers"]        # an arm of a sweep: what it changes; with `recipe.extends` from another start
    pretrain.decoder_layers = 2

    [small]                     # what the small profile changes, after an arm
    pretrain.steps = 20

Steps run in the order in which they are written, each after those that it reads.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qontext.frame import stages, trust
from qontext.frame.config import StageConfig
from qontext.frame.errors import QontextError, choose
from qontext.frame.stages import Command, Pipeline, Stage
from qontext.workflow.tables import (
    INPUTS,
    RECIPE,
    Tables,
    find_recipe,
    flat,
    is_input,
    is_reference,
    is_shipped,
    missing_inputs,
    read_tables,
    steps_of,
)

LAST = ("compare",)
"""Verbs of steps that are no stages: they show a result, which no other step reads."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class Step:
    """One table of a recipe: a name, a stage and its settings, still with `@step` references."""

    name: str
    stage: Stage[Any] | Command[Any]
    settings: dict[str, Any]

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any], *, verb: str | None = None) -> Step:
        """A step of a verb, by default the one with the step's name. Settings that are None are omitted."""
        stage = stages.load(verb or name)
        assert isinstance(stage, Stage), stage.verb
        return cls(name, stage, {key: value for key, value in settings.items() if value is not None})

    def upstream(self) -> set[str]:
        """The steps whose output this step reads."""
        return {value[1:].partition("/")[0] for value in self.references()}

    def references(self) -> Iterator[str]:
        """The values that name the output of a step, or a part of it."""
        return (value for value in flat(self.settings.values()) if is_reference(value))

    def configure(self, root: Path) -> StageConfig:
        """The configuration, with references turned into the directories under `root`."""
        settings = {name: _resolve(value, root) for name, value in self.settings.items()}
        if isinstance(self.stage, Pipeline):
            settings["out"] = str(root / self.name)
        return self.stage.config.make(settings, where=f"{self.stage.verb} (step {self.name!r})")  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Recipe:
    title: str
    steps: tuple[Step, ...]
    file: str = ""
    """The file, for messages."""
    comment: str = ""
    published: tuple[str, ...] = ()
    """The published systems that it reproduces, by their names in `evaluation.benchmarks`."""
    benchmarks: tuple[str, ...] = ()
    """The benchmarks on which these are shown; empty: all."""
    cost: str = ""
    """The cost at full size."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """The inputs that steps refer to."""

    def dump(self) -> str:
        """The recipe as TOML, fully resolved."""
        about = {
            "title": self.title,
            "published": self.published,
            "benchmarks": self.benchmarks,
            "cost": self.cost,
        }
        tables = {"[recipe]": {key: value for key, value in about.items() if value}}
        tables |= {"[inputs]": dict(self.inputs)} if self.inputs else {}
        for step in self.steps:
            name = step.name if re.fullmatch(r"[\w-]+", step.name, re.ASCII) else _toml(step.name)
            verb = {"verb": step.stage.verb} if step.stage.verb != step.name else {}
            tables[f"[{name}]"] = {**verb, **step.settings}
        lines = [f"# {self.comment}", ""] if self.comment else []
        for heading, table in tables.items():
            lines += [heading, *(f"{key} = {_toml(value)}" for key, value in table.items()), ""]
        return "\n".join(lines)


def read_recipe(
    path: str,
    changes: tuple[str, ...] = (),
    *,
    small: bool = False,
    arm: str | None = None,
    is_foreign: bool = False,
) -> Recipe:
    """Parse and check a recipe: a file, or the name of a shipped one. `changes` are ``step.field=value``; `arm` is one
    of a sweep. One that may be from anyone, `is_foreign`, needs the user's word for what it reads elsewhere.
    """
    file = find_recipe(path)
    tables = read_tables(file, small=small, changes=changes, arm=arm)
    if missing := missing_inputs(tables):
        raise QontextError(
            f"{'the small profile of ' if small else ''}the recipe needs a value for {', '.join(map(repr, missing))}",
            place=path,
            remedy=f"Add: {' '.join(f'--set inputs.{name}=…' for name in missing)}",
        )
    inputs = tables[INPUTS]
    for table in steps_of(tables).values():
        table.update({key: _fill(value, inputs, file) for key, value in table.items() if key != "verb"})
    trust.require(demands(tables, file, is_foreign=is_foreign), file)
    return _recipe(tables | {INPUTS: {}}, file)


def describe_recipe(
    path: str, changes: tuple[str, ...] = (), *, small: bool = False, arm: str | None = None
) -> Recipe:
    """The recipe with references to its inputs, which may have no value."""
    file = find_recipe(path)
    return _recipe(read_tables(file, small=small, changes=changes, arm=arm), file, is_shown=True)


def demands(tables: Tables, file: Path, *, is_foreign: bool = True) -> list[trust.Demand]:
    """The demands of a recipe, with the files and addresses elsewhere that it reads; of one that comes with the package or
    that `adapt` wrote, only if it sends something."""
    steps = {name: (table, stages.load(_verb(name, table, file))) for name, table in steps_of(tables).items()}
    wanted = dict.fromkeys(
        demand for table, stage in steps.values() for demand in stage.config.demands(table)
    )
    if (is_foreign and not is_shipped(file)) or any(demand.sends for demand in wanted):
        outside = {
            value: None
            for table, stage in steps.values()
            for field in stage.config.inputs()
            for value in flat([table.get(field)])
            if isinstance(value, str) and _is_outside(value, file)
        }
        named = {word for demand in wanted for word in demand.words}
        wanted |= {trust.Demand(f"read {path}", (path,)): None for path in outside if path not in named}
    return list(wanted)


def as_path(name: str) -> str:
    """The name of an input as recipes have it: a file or folder is no reference to a step or an input."""
    return f"./{name}" if is_reference(name) or is_input(name) else name


def _recipe(tables: Tables, file: Path, *, is_shown: bool = False) -> Recipe:
    """Build the recipe from tables; verbs and settings of steps are validated. If it is only shown, the settings of kinds
    that are not of this package or an installed one are left as they are: no code is imported.
    """
    steps: list[Step] = []
    readable: dict[str, None] = {}
    for name, table in steps_of(tables).items():
        settings = {key: value for key, value in table.items() if key != "verb" and value is not None}
        verb = _verb(name, table, file)
        stage = stages.load(verb)
        if not isinstance(stage, Stage) and verb not in LAST:
            raise QontextError(
                f"the verb {verb!r} is not a stage, so it cannot be a step of a recipe", place=file
            )
        step = Step(name, stage, settings)
        for needed in step.upstream():
            choose(needed, readable, f"earlier step, read by [{name}],")
        if above := next((value for value in step.references() if ".." in Path(value).parts), None):
            raise QontextError(f"[{name}] reads {above}, which is not in that step's folder", place=file)
        if not (is_shown and any(demand.code for demand in stage.config.demands(settings))):
            stage.config.accepting(settings, f"[{name}] in {file.name}")
        if isinstance(stage, Stage):
            readable[name] = None
        steps.append(step)
    if not steps:
        raise QontextError("the recipe has no steps", place=file)
    about = tables[RECIPE]
    return Recipe(
        str(about.get("title", file.stem)),
        tuple(steps),
        str(file),
        published=tuple(map(str, flat([about.get("published", [])]))),
        benchmarks=tuple(map(str, flat([about.get("benchmarks", [])]))),
        cost=str(about.get("cost", "")),
        inputs=tables[INPUTS],
    )


def _verb(name: str, table: Mapping[str, Any], file: Path) -> str:
    return choose(str(table.get("verb", name)), stages.VERBS, f"verb (of step {name!r} in {file.name})")


def _is_outside(value: str, file: Path) -> bool:
    """True if an input is an address, or a file outside of the recipe's folder and the current one, or a hidden one, that
    is of no installed package."""
    if _ADDRESS.match(value):
        return True
    if is_reference(value) or not Path(value).expanduser().exists() or trust.is_named(value):
        return False
    return trust.is_elsewhere(value, file.resolve().parent)


def _fill(value: Any, inputs: Mapping[str, Any], file: Path) -> Any:
    """The value with that of the input that it refers to, which may refer to another one."""
    if isinstance(value, list):
        return [_fill(item, inputs, file) for item in value]
    if is_input(value):
        return _fill(inputs[choose(value[1:], inputs, f"input of {file.name}")], inputs, file)
    return value


def _resolve(value: Any, root: Path) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_resolve(item, root) for item in value)
    return str(root / value[1:]) if is_reference(value) else value


def _toml(value: Any) -> str:
    """The value in TOML. Strings, numbers and lists are as in JSON, except for one character."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
