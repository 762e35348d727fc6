"""A recipe: a TOML file whose tables are stages. Running it runs the steps that are not finished, each with a reason.

    [recipe]
    title = "what it is for"

    [inputs]                    # values that several steps share; --set inputs.corpus=... replaces one
    corpus = "pydocs:"

    [split]                     # a step; its verb is its name, unless `verb = "..."` says otherwise
    source = "$corpus"

    [tokens]
    passages = "@split"         # the directory that the step `split` wrote; @step/part is a part of it

The last steps may be `compare`, whose result no other step reads.

A step only runs again if its settings or the content of its inputs changed. For recipes that extend others,
see `tables`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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
    explain_inputs,
    find_recipe,
    flat,
    is_input,
    is_shipped,
    missing_inputs,
    read_arms,
    read_tables,
    steps_of,
)

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
LAST = ("compare",)
"""Verbs of steps that are no stages: they show a result, which no other step reads."""


@dataclass(frozen=True)
class Step:
    """One table of a recipe: a name, a stage and its settings, still with `@step` references."""

    name: str
    stage: Stage[Any] | Command[Any]
    settings: dict[str, Any]
    comment: str = field(default="", compare=False)

    @classmethod
    def of(
        cls, name: str, settings: Mapping[str, Any], *, verb: str | None = None, comment: str = ""
    ) -> Step:
        """A step of a verb, by default the one with the step's name. Settings that are None are omitted."""
        stage = stages.load(verb or name)
        assert isinstance(stage, Stage), stage.verb
        return cls(name, stage, {key: value for key, value in settings.items() if value is not None}, comment)

    def upstream(self) -> set[str]:
        """The steps whose output this step reads."""
        return {value[1:].partition("/")[0] for value in self.references()}

    def reads(self, root: Path) -> set[str]:
        """The directories below `root`, and parts of them, that this step reads."""
        return {str(_resolve(value, root)) for value in self.references()}

    def references(self) -> Iterator[str]:
        """The values that name the output of a step, or a part of it."""
        return (value for value in flat(self.settings.values()) if _is_reference(value))

    def configure(self, root: Path) -> StageConfig:
        """The configuration, with references turned into the directories under `root`."""
        settings = {name: _resolve(value, root) for name, value in self.settings.items()}
        if isinstance(self.stage, Pipeline):
            settings["out"] = str(root / self.name)
        return self.stage.config.make(settings, where=f"{self.stage.verb} (step {self.name!r})")  # type: ignore[no-any-return]

    def renamed(self, names: Mapping[str, str]) -> Step:
        """A copy of the step with replaced inputs."""
        inputs = self.stage.config.inputs()
        renamed = {key: _renamed(value, names) for key, value in self.settings.items() if key in inputs}
        return replace(self, settings={**self.settings, **renamed})


@dataclass(frozen=True)
class Recipe:
    title: str
    steps: tuple[Step, ...]
    file: str = ""
    """The file, for messages."""
    comment: str = ""
    published: tuple[str, ...] = ()
    """The published systems that it reproduces, by their names in `evaluation.published`."""
    benchmarks: tuple[str, ...] = ()
    """The benchmarks on which these are shown; empty: all."""
    cost: str = ""
    """The cost at full size."""
    examples: str = ""
    """The evaluation of a sweep, with examples of queries, for which the first passage of every arm is shown."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """The inputs that steps refer to."""

    def dump(self) -> str:
        """The recipe as TOML, fully resolved."""
        lines = [f"# {self.comment}", ""] if self.comment else []
        lines += ["[recipe]", f"title = {_toml(self.title)}"]
        lines += [f"published = {_toml(self.published)}"] if self.published else []
        lines += [f"benchmarks = {_toml(self.benchmarks)}"] if self.benchmarks else []
        lines += [f"cost = {_toml(self.cost)}"] if self.cost else []
        lines += (
            ["", "[inputs]", *(f"{key} = {_toml(v)}" for key, v in self.inputs.items())]
            if self.inputs
            else []
        )
        lines.append("")
        for step in self.steps:
            name = step.name if re.fullmatch(r"[\w-]+", step.name, re.ASCII) else _toml(step.name)
            lines.append(f"[{name}]" + (f" # {step.comment}" if step.comment else ""))
            if step.stage.verb != step.name:
                lines.append(f"verb = {_toml(step.stage.verb)}")
            lines += [f"{key} = {_toml(value)}" for key, value in step.settings.items()]
            lines.append("")
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
    if arm is None and read_arms(file):
        raise QontextError(
            "is a sweep, which has a recipe for each of its arms",
            place=file,
            remedy=f"Run: qontext sweep {path}",
        )
    tables = read_tables(file, small=small, changes=changes, arm=arm)
    if missing := missing_inputs(tables):
        what = "the small profile of the recipe" if small else "the recipe"
        raise QontextError(
            f"{what} needs a value for {explain_inputs(file, missing, small=small)}",
            place=path,
            remedy=f"Add: {' '.join(f'--set inputs.{name}=…' for name in missing)}",
        )
    values = {name: _value_of(name, tables[INPUTS], file) for name in tables[INPUTS]}
    inputs = {name: _fill(value, values, file) for name, value in values.items()}
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


def _is_outside(value: str, file: Path) -> bool:
    """True if an input is an address, or a file outside of the recipe's folder and the current one, or a hidden one, that
    is of no installed package."""
    if _ADDRESS.match(value):
        return True
    if _is_reference(value) or not Path(value).expanduser().exists() or trust.is_named(value):
        return False
    return trust.is_elsewhere(value, file.resolve().parent)


def _verb(name: str, table: Mapping[str, Any], file: Path) -> str:
    return choose(str(table.get("verb", name)), stages.VERBS, f"verb (of step {name!r} in {file.name})")


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
        examples=str(about.get("examples", "")),
        inputs=tables[INPUTS],
    )


def _value_of(name: str, inputs: dict[str, Any], file: Path) -> Any:
    """The value of an input, which may be that of another one."""
    seen = {name: None}
    while is_input(value := inputs[name]):
        name = choose(value[1:], inputs, f"input of {file.name}")
        if name in seen:
            circle = " → ".join(f"${other}" for other in (*seen, name))
            raise QontextError(f"the inputs refer to each other in a circle: {circle}", place=file)
        seen[name] = None
    return value


def _fill(value: Any, inputs: dict[str, Any], file: Path) -> Any:
    if isinstance(value, list):
        return [_fill(item, inputs, file) for item in value]
    if is_input(value):
        name = choose(value[1:], inputs, f"input of {file.name}")
        return inputs[name]
    return value


def _resolve(value: Any, root: Path) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_resolve(item, root) for item in value)
    return str(root / value[1:]) if _is_reference(value) else value


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def as_path(name: str) -> str:
    """The name of an input as recipes have it: a file or folder is no reference to a step or an input."""
    return f"./{name}" if _is_reference(name) or is_input(name) else name


def _is_reference(value: Any) -> bool:
    """True if the value names the output of a step."""
    return isinstance(value, str) and value.startswith("@")


def _toml(value: Any) -> str:
    """The value in TOML. Strings, numbers and lists are as in JSON, except for one character."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
