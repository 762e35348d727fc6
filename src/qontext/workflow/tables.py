"""The tables of a recipe file: extended recipes, the arms of a sweep, the small profile, changes; see `recipe`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qontext.frame import config, trust
from qontext.frame.errors import QontextError, choose

SHIPPED = Path(__file__).parent.parent / "recipes"
RECIPE, INPUTS, SMALL, SWEEP = RESERVED = ("recipe", "inputs", "small", "sweep")
"""The tables that are not steps."""
ABOUT = ("title", "extends", "without", "published", "benchmarks", "cost", "arms")
"""The keys of [recipe]. `published` systems are shown on `benchmarks` (default: all). Of a sweep, `arms` are those that
are run."""
Tables = dict[str, dict[str, Any]]


def read_tables(
    file: Path, *, small: bool = False, changes: tuple[str, ...] = (), arm: str | None = None
) -> Tables:
    """The tables of a recipe, or of an arm of a sweep, with everything that it extends. [recipe] and [inputs] are
    always present, [small] and [sweep] never."""
    tables = _read(file, arm)
    profile = tables[SMALL]
    if small:
        if not profile:
            raise QontextError(
                "the recipe has no small profile",
                place=file,
                remedy="Add a [small] table, or remove --small.",
            )
        tables = _extended(tables, profile, file)
    del tables[SMALL], tables[SWEEP]
    known = targets(tables, changes)
    for change in changes:
        check_target(change, known, file)
        name, value = config.parse_assignment(change)
        trust.give(value)
        table, _, field = name.partition(".")
        tables[table][field] = None if _is_empty(value) else value
    return tables


def targets(tables: Tables, changes: Iterable[str] = ()) -> list[str]:
    """The names that a change may have: the steps, and as inputs.NAME the inputs, with those that only a step or a change
    refers to."""
    values = [value for name in (*steps_of(tables), INPUTS) for value in flat(tables[name].values())]
    values += flat(config.parse_assignment(change)[1] for change in changes)
    names = [*tables[INPUTS], *(value[1:] for value in values if is_input(value))]
    return [*steps_of(tables), *(f"{INPUTS}.{name}" for name in dict.fromkeys(names))]


def target_of(change: str) -> str:
    """The target of a change: a step or ``inputs.name``."""
    name, _ = config.parse_assignment(change)
    return name if name.startswith(f"{INPUTS}.") else name.partition(".")[0]


def check_target(change: str, names: Iterable[str], file: Path) -> None:
    """Refuse a change of what is not among the names."""
    name = target_of(change)
    choose(name, names, f"{'input' if name.startswith(f'{INPUTS}.') else 'step'} of {file.name}")


def read_arms(file: Path, *, small: bool = False) -> list[str]:
    """The names of a sweep's arms; none if the file is a recipe."""
    own = _own(file)
    about = {**own.get(RECIPE, {}), **(own.get(SMALL, {}).get(RECIPE, {}) if small else {})}
    arms = own.get(SWEEP, {})
    return [choose(name, arms, f"arm of {file.name}") for name in about.get("arms", arms)]


def find_recipe(name: str, folder: Path = Path()) -> Path:
    """The file of a recipe: a path, relative to the folder, or the name of a shipped recipe."""
    file = folder / name
    if file.suffix or len(Path(name).parts) > 1:
        return config.existing(file, "the recipe")
    files = {path.stem: path for path in (*shipped(), *shipped("sweeps"))}
    return file if file.is_file() else files[choose(name, files, "recipe")]


def shipped(folder: str = "") -> list[Path]:
    """The files of the recipes, or of the sweeps in the folder, that come with the package, by name."""
    return sorted((SHIPPED / folder).glob("*.toml"), key=lambda path: path.stem)


def is_shipped(file: Path) -> bool:
    """True if a file comes with the package, wherever ``..`` and links in its path lead."""
    return SHIPPED.resolve() in file.resolve().parents


def steps_of(tables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables that are steps."""
    return {name: table for name, table in tables.items() if name not in RESERVED}


def missing_inputs(tables: Tables) -> list[str]:
    """The inputs that a step uses and that have no value."""
    inputs = tables[INPUTS]
    used = {value for table in steps_of(tables).values() for value in flat(table.values()) if is_input(value)}
    used |= {value for name, value in inputs.items() if f"${name}" in used and is_input(value)}
    return [name for name, value in inputs.items() if value == "" and f"${name}" in used]


def flat(values: Iterable[Any]) -> Iterator[Any]:
    """The values, and those in lists."""
    for value in values:
        yield from value if isinstance(value, list | tuple) else [value]


def is_input(value: Any) -> bool:
    """True if the value refers to an input."""
    return isinstance(value, str) and value.startswith("$")


def _read(file: Path, arm: str | None = None) -> Tables:
    """The tables of a file, or of an arm of it, and of what it extends."""
    own = _own(file)
    arm_tables: Tables = (
        {} if arm is None else own[SWEEP][choose(arm, own.get(SWEEP, {}), f"arm of {file.name}")]
    )
    about = {**own.get(RECIPE, {}), **arm_tables.get(RECIPE, {})}
    for key in about:
        choose(key, ABOUT, f"key of [recipe] in {file.name}")
    extended = about.get("extends")
    base: Tables = _read(find_recipe(extended, file.parent)) if extended else {name: {} for name in RESERVED}
    return _extended(_extended(base, own, file), arm_tables, file)


def _own(file: Path) -> Tables:
    """The tables of one file, to be left as they are: files that come with the package are parsed once."""
    if not is_shipped(file):
        return _parsed(file)
    tables = _parsed_once(file)
    trust.give(tables)  # what comes with the package is no file from others
    return tables


def _parsed(file: Path) -> Tables:
    """The tables of one file, each of them a table with a name that a directory can have."""
    try:
        tables = config.parse_toml(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise QontextError(f"not a valid recipe: {error}", place=file) from None
    named = [tables, tables.get(SMALL, {}), *(tables.get(SWEEP) or {}).values()]
    for name, table in ((name, table) for own in named for name, table in dict(own).items()):
        if not isinstance(table, dict):
            raise QontextError(f"{name!r} must be a table, such as [split], not a value", place=file)
        if not re.fullmatch(r"\w[\w.,=+-]{0,199}", name):
            raise QontextError(
                f"{name!r} is not a valid name of a step, which is also the name of its directory",
                place=file,
                remedy="Use at most 200 letters, digits, - and _.",
            )
    return tables


_parsed_once = functools.cache(_parsed)


def _extended(base: Tables, own: Mapping[str, Any], file: Path) -> Tables:
    """The tables of `base`, overridden by those of `own`. An empty setting of a step restores its default."""
    about = own.get(RECIPE, {})
    dropped = [
        choose(name, steps_of(base), f"step to leave out of {file.name}") for name in about.get("without", ())
    ]
    kept = {name: table for name, table in steps_of(base).items() if name not in dropped}
    profile = {name: dict(table) for name, table in base[SMALL].items() if name not in dropped}
    if unneeded := profile.get(RECIPE, {}).get("without"):
        profile[RECIPE]["without"] = [name for name in unneeded if name not in dropped]
    for name, table in own.get(SMALL, {}).items():
        profile[name] = {**profile.get(name, {}), **table}
    tables: Tables = {
        RECIPE: {**base[RECIPE], **{k: v for k, v in about.items() if k not in ("extends", "without")}},
        INPUTS: {**base[INPUTS], **own.get(INPUTS, {})},
        SMALL: profile,
        SWEEP: {},
    }
    for name, table in steps_of(own).items():
        merged = {**kept.get(name, {}), **table}
        is_new = name not in kept
        kept[name] = {
            key: value for key, value in merged.items() if is_new or not (key in table and _is_empty(value))
        }
    return tables | _ordered(kept, tables[INPUTS])


def _ordered(steps: Tables, inputs: Mapping[str, Any]) -> Tables:
    """The steps in their order, each after those that it reads."""
    order: Tables = {}
    begun: set[str] = set()

    def add(name: str) -> None:
        if name in begun or name not in steps:
            return
        begun.add(name)
        for value in flat(steps[name].values()):
            read = inputs.get(value[1:]) if is_input(value) else value
            if is_reference(read):
                add(str(read)[1:].partition("/")[0])
        order[name] = steps[name]

    for name in steps:
        add(name)
    return order


def _is_empty(value: Any) -> bool:
    return value in ("", "null")


def is_reference(value: Any) -> bool:
    """True if the value names the output of a step."""
    return isinstance(value, str) and value.startswith("@")
