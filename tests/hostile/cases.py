"""The cases: every setting of every command, changed in every way that fits its kind, with what is expected.

A case's id is `command/setting/mutation`, such as `search:bm25/k/huge`.
"""

from __future__ import annotations

import fnmatch
import random
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.hostile.binaries import ARRAYS, MODELS, PARQUET
from tests.hostile.commands import COMMANDS, LONG, MADE, Settings
from tests.hostile.files import ARTIFACTS, PATHS, Damage, copied, the_output
from tests.hostile.outputs import OUTPUTS
from tests.hostile.runner import ACCEPT, EITHER, REFUSE, REPORT, command_line
from tests.hostile.texts import JSON_LINES, RECIPES, RUNS, TAB_SEPARATED, Table
from tests.hostile.values import OUTS, is_list, values_of

from qontext.frame import stages
from qontext.frame.config import StageConfig

FORMATS = {
    ".jsonl": JSON_LINES, ".tsv": TAB_SEPARATED, ".trec": RUNS, ".parquet": PARQUET, ".toml": RECIPES,
    "split": PARQUET, "generate": PARQUET, "mine": PARQUET, "encode": ARRAYS, "tokens": ARRAYS,
    "pretrain": MODELS, "train-reranker": MODELS, "train-generator": MODELS,
}  # fmt: skip
"""Damages inside an input: by the file's ending, or by the verb that made it."""
INSIDE_SET = {"corpus.jsonl": JSON_LINES, "queries.jsonl": JSON_LINES, "qrels/train.tsv": TAB_SEPARATED}

EXPECTED: dict[str, str] = {
    # A folder for the outputs of several stages may hold other things, too.
    "run/out/foreign": EITHER,
    # Only the description is read, unless --verify is given.
    "show/directory/part-*": EITHER,
    "show/directory/column-*": EITHER,
    "show/directory/no-*": EITHER,
    "show:verify/directory/column-*": REFUSE,
    # The model is checked, but not loaded.
    **{
        f"push/directory/{case}": EITHER
        for case in ("hidden_size-*", "tokenizer.json-missing", "*-null", "type-unknown")
    },
    "push/scores/part-*": EITHER,
    # A model is loaded from its own files, whatever its meta.json says of them.
    "*/*/meta-parts-*": EITHER,
}
"""Exceptions to what a mutation's table expects: pattern of ids → expectation; the last that matches counts."""


@dataclass(frozen=True)
class Case:
    id: str
    command: str
    expected: str
    changes: dict[str, str | Damage] = field(default_factory=dict)
    out: str | Damage = "out"
    extra: tuple[str, ...] = ()
    streams: dict[str, str] = field(default_factory=dict)
    bare: bool = False
    """Without the command's own settings."""

    @property
    def verb(self) -> str:
        return self.command.partition(":")[0]

    @property
    def mutation(self) -> str:
        return self.id.rpartition("/")[2]

    def argv(self, inputs: Path, folder: Path) -> list[str]:
        """The command line; damaged inputs are made in `folder`."""
        config = stages.load(self.verb).config.with_options(COMMANDS[self.command])
        settings: Settings = {} if self.bare else dict(COMMANDS[self.command])
        out = self.out
        if callable(out):
            (folder / "work").mkdir(parents=True, exist_ok=True)
            out = out(inputs / MADE_DIRECTORY, folder / "work")
        for number, (name, change) in enumerate(self.changes.items()):
            value = change
            if callable(change):
                valid = settings[name][0] if isinstance(settings[name], list) else settings[name]
                place = folder / f"given{number}"
                place.mkdir(parents=True)
                value = change(inputs / valid[1:], place)
            settings[name] = [value, *settings.get(name, [])[1:]] if is_list(config, name) else value
        return [*command_line(self.verb, settings, inputs, None if self.bare else out), *self.extra]


MADE_DIRECTORY = "passages"


def all_cases() -> list[Case]:
    """Every case, in the order of the commands."""
    cases = [case for command in COMMANDS for case in _of_command(command)]
    cases = [replace(case, expected=_expected(case)) for case in cases]
    twice = [name for name, count in Counter(case.id for case in cases).items() if count > 1]
    assert not twice, twice
    return [case for case in cases if case.verb not in LONG or case.expected == REFUSE]


def _expected(case: Case) -> str:
    matching = [expected for pattern, expected in EXPECTED.items() if fnmatch.fnmatchcase(case.id, pattern)]
    return matching[-1] if matching else case.expected


def _of_command(command: str) -> Iterator[Case]:
    verb, _, variant = command.partition(":")
    loaded, settings = stages.load(verb), COMMANDS[command]
    config = loaded.config.with_options(settings)
    marks, first = config.inputs(), loaded.config.with_options(COMMANDS[verb])
    for name in config.model_fields:
        if name == "out":
            continue
        if name in marks and marks[name].by_content:
            yield from _of_input(command, name, settings.get(name))
        # Other settings are those of the verb's first command, unless that chooses another kind.
        elif not variant or name in settings or name not in first.model_fields:
            for mutation, (value, expected) in values_of(config, name).items():
                yield Case(f"{command}/{name}/{mutation}", command, expected, {name: value})
    if not variant:
        yield from _of_verb(verb, config, isinstance(loaded, stages.Stage))


def _of_input(command: str, name: str, valid: Any) -> Iterator[Case]:
    valid = valid[0] if isinstance(valid, list) else valid
    at_hand = isinstance(valid, str) and valid.startswith("@")
    for mutation, (damage, expected) in PATHS.items():
        if at_hand or mutation in ("empty-name", "missing", "nul", "long-name", "surrogate"):
            change = damage if at_hand else damage(Path("none"), Path("none"))
            yield Case(f"{command}/{name}/{mutation}", command, expected, {name: change})
    if not at_hand or valid == "@.":
        return
    tables: Table = {}
    if valid == "@set":
        for file, table in INSIDE_SET.items():
            inside = {name: damage for name, (damage, _) in table.items() if "-named-" not in name}
            tables |= {f"{file}-{name}": (_inside(file, damage), EITHER) for name, damage in inside.items()}
    elif valid[1:] in MADE:
        tables = {**ARTIFACTS, **FORMATS.get(MADE[valid[1:]][0], {})}
    else:
        tables = FORMATS.get(Path(valid).suffix, {})
    for mutation, (damage, expected) in tables.items():
        yield Case(f"{command}/{name}/{mutation}", command, expected, {name: damage})
    if isinstance(stages.load(command.partition(":")[0]), stages.Stage):
        yield Case(f"{command}/{name}/is-the-output", command, REFUSE, {name: the_output})
        replaced = ("--overwrite",)
        yield Case(
            f"{command}/{name}/is-the-output-replaced", command, REFUSE, {name: the_output}, extra=replaced
        )


def _inside(file: str, damage: Damage) -> Damage:
    """The damage to one file of a folder."""

    def damaged(valid: Path, folder: Path) -> str:
        target = copied(valid, folder)
        aside = folder / "aside"
        aside.mkdir()
        damaged_file = Path(damage(target / file, aside))
        (target / file).unlink()
        shutil.move(damaged_file, (target / file).with_name(damaged_file.name))
        return str(target)

    return damaged


def _of_verb(verb: str, config: type[StageConfig], is_stage: bool) -> Iterator[Case]:
    """Cases that concern no single setting."""
    needed = any(info.is_required() for info in config.model_fields.values()) or (
        is_stage and stages.load(verb).without_out is None
    )
    yield Case(f"{verb}//bare", verb, REFUSE if needed else EITHER, bare=True)
    yield Case(f"{verb}//unknown-flag", verb, REFUSE, extra=("--no-such-flag",))
    yield Case(f"{verb}//flag-nul", verb, REFUSE, extra=("--a\0b",))
    yield Case(f"{verb}//flag-surrogate", verb, REFUSE, extra=("--caf\udce9",))
    yield Case(f"{verb}//flag-long", verb, REFUSE, extra=("--" + "x" * 100_000,))
    yield Case(f"{verb}//help", verb, ACCEPT, extra=("--help",))
    yield Case(f"{verb}//help-to-full-disk", verb, REFUSE, extra=("--help",), streams={"out": "/dev/full"})
    yield Case(f"{verb}//json-to-full-disk", verb, REFUSE, extra=("--json",), streams={"out": "/dev/full"})
    yield Case(
        f"{verb}//notes-to-full-disk", verb, EITHER, extra=("--verbose",), streams={"err": "/dev/full"}
    )
    many = all(not is_list(config, name) for name, mark in config.inputs().items() if mark.positional)
    if many:
        yield Case(f"{verb}//more-arguments", verb, REFUSE, extra=("one", "two", "three"))
    if is_stage or "out" in config.model_fields:
        for mutation, (value, expected) in OUTS.items():
            yield _with_out(verb, is_stage, mutation, value, expected)
        for mutation, (damage, expected) in OUTPUTS.items():
            yield _with_out(verb, is_stage, mutation, damage, expected)


def _with_out(verb: str, is_stage: bool, mutation: str, out: str | Damage, expected: str) -> Case:
    return Case(f"{verb}/out/{mutation}", verb, expected, out=out)


def pairs(cases: list[Case], seed: int, per_verb: int = 40) -> list[Case]:
    """Two changes at once, drawn by a seed: what must be refused alone must be refused together."""
    combined = []
    for command in COMMANDS:
        single = [
            case
            for case in cases
            if case.command == command and len(case.changes) == 1 and case.expected != ACCEPT
        ]
        drawn = random.Random(f"{seed}/{command}")
        for _ in range(per_verb if len({name for case in single for name in case.changes}) > 1 else 0):
            one, other = drawn.sample(single, 2)
            if one.changes.keys() != other.changes.keys():
                expected = REFUSE if REFUSE in (one.expected, other.expected) else EITHER
                id = f"{one.id}+{other.id.partition('/')[2]}"
                combined.append(Case(id, command, expected, {**one.changes, **other.changes}))
    return list({case.id: case for case in combined}.values())


def sample(cases: list[Case], per_verb: int) -> list[Case]:
    """Some cases, always the same: one of each mutation, and of each verb at least so many, of different mutations first."""
    ordered = sorted(cases, key=lambda case: zlib.crc32(case.id.encode()))
    chosen = {case.mutation: case for case in reversed(ordered)}
    of_verb: dict[str, Counter[str]] = {verb: Counter() for verb in dict.fromkeys(c.verb for c in cases)}
    for case in chosen.values():
        of_verb[case.verb][case.mutation] += 1
    taken = {case.id for case in chosen.values()}
    for verb, counts in of_verb.items():
        others = [case for case in ordered if case.verb == verb and case.id not in taken]
        others.sort(key=lambda case: counts[case.mutation])
        taken |= {case.id for case in others[: max(0, per_verb - counts.total())]}
    return [case for case in cases if case.id in taken]


__all__ = ["REPORT", "Case", "all_cases", "pairs", "sample"]
