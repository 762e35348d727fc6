"""A recipe: a TOML file whose tables are stages. Running it runs the steps that are not finished, each with a reason.

    [recipe]
    title = "what it is for"

    [inputs]                    # values that several steps share; --set inputs.corpus=... replaces one
    corpus = "pydocs:"

    [split]                     # a step; its verb is its name, unless `verb = "..."` says otherwise
    source = "$corpus"

    [tokens]
    passages = "@split"         # the directory that the step `split` wrote; @step/part is a part of it

The last steps may be `beir` and `compare`, whose results no other step reads.

A step only runs again if its settings or the content of its inputs changed. For recipes that extend others,
see `tables`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qontext.frame import stages
from qontext.frame.config import StageConfig
from qontext.frame.errors import QontextError, choose
from qontext.frame.stages import Command, Pipeline, Stage
from qontext.workflow.tables import (
    INPUTS,
    RECIPE,
    Tables,
    find_recipe,
    flat,
    missing_inputs,
    read_arms,
    read_tables,
    steps_of,
)

LAST = ("beir", "compare")
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
        return {value[1:].partition("/")[0] for value in self._references()}

    def reads(self, root: Path) -> set[str]:
        """The directories below `root`, and parts of them, that this step reads."""
        return {str(_resolve(value, root)) for value in self._references()}

    def _references(self) -> Iterator[str]:
        return (value for value in flat(self.settings.values()) if _is_reference(value))

    def configure(self, root: Path) -> StageConfig:
        """The configuration, with references turned into the directories under `root`."""
        settings = {name: _resolve(value, root) for name, value in self.settings.items()}
        if isinstance(self.stage, Pipeline):
            settings["out"] = str(root / self.name)
        return self.stage.config.make(settings, where=f"{self.stage.verb} (step {self.name!r})")  # type: ignore[no-any-return]

    def renamed(self, names: Mapping[str, str]) -> Step:
        """A copy of the step with replaced values."""
        return replace(self, settings={key: _renamed(value, names) for key, value in self.settings.items()})


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
    """As a sweep: the evaluation with examples of queries, for which the first passage of every arm is shown."""
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
    path: str, changes: tuple[str, ...] = (), *, small: bool = False, arm: str | None = None
) -> Recipe:
    """Parse and check a recipe: a file, or the name of a shipped one. `changes` are ``step.field=value``; `arm` is one
    of a sweep.
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
        raise QontextError(
            f"the recipe needs a value for {', '.join(map(repr, missing))}",
            place=file,
            remedy=f"Add: {' '.join(f'--set inputs.{name}=…' for name in missing)}",
        )
    inputs = {name: _fill(value, tables[INPUTS], file) for name, value in tables[INPUTS].items()}
    for table in steps_of(tables).values():
        table.update({key: _fill(value, inputs, file) for key, value in table.items() if key != "verb"})
    return _recipe(tables | {INPUTS: {}}, file)


def describe_recipe(
    path: str, changes: tuple[str, ...] = (), *, small: bool = False, arm: str | None = None
) -> Recipe:
    """The recipe with references to its inputs, which may have no value."""
    file = find_recipe(path)
    return _recipe(read_tables(file, small=small, changes=changes, arm=arm), file)


def _recipe(tables: Tables, file: Path) -> Recipe:
    """Build the recipe from tables; verbs and settings of steps are validated."""
    steps: list[Step] = []
    for name, table in steps_of(tables).items():
        settings = {key: value for key, value in table.items() if key != "verb" and value is not None}
        verb = choose(str(table.get("verb", name)), stages.VERBS, f"verb (of step {name!r} in {file.name})")
        stage = stages.load(verb)
        if not isinstance(stage, Stage) and verb not in LAST:
            raise QontextError(
                f"the verb {verb!r} is not a stage, so it cannot be a step of a recipe", place=file
            )
        step = Step(name, stage, settings)
        readable = [s.name for s in steps if isinstance(s.stage, Stage)]
        for needed in step.upstream():
            choose(needed, readable, f"earlier step, read by [{name}],")
        stage.config.accepting(settings, f"[{name}] in {file.name}")
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


def _fill(value: Any, inputs: dict[str, Any], file: Path) -> Any:
    if isinstance(value, list):
        return [_fill(item, inputs, file) for item in value]
    if isinstance(value, str) and value.startswith("$"):
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


def _is_reference(value: Any) -> bool:
    """Whether the value names the output of a step."""
    return isinstance(value, str) and value.startswith("@")


def _toml(value: Any) -> str:
    """The value in TOML. Strings, numbers and lists are as in JSON, except for one character."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
