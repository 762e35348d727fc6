"""The tables of a recipe file: extended recipes, the small profile, replacements.

[recipe]
extends = "base"            # a shipped recipe or a file beside this one; a list of them is read from left to right
without = ["filter"]        # steps of it to leave out

[pretrain]                  # a step of the extended recipe: only these settings are replaced
context = "rand"
queries = ""                # back to the default

[generate]                  # a new step: it comes before the first step that needs it, or at the end
passages = "@split"

[small]                     # replacements of the small profile, by the same rules
pretrain.steps = 20
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qontext.frame import config
from qontext.frame.errors import QontextError, choose

SHIPPED = Path(__file__).parent.parent / "recipes"
RECIPE, INPUTS, SMALL = RESERVED = ("recipe", "inputs", "small")
"""The tables that are not steps."""
ABOUT = ("title", "extends", "without", "published", "cost")
"""The keys of [recipe]."""

Tables = dict[str, dict[str, Any]]


def read_tables(file: Path, *, small: bool = False, changes: tuple[str, ...] = ()) -> Tables:
    """The tables of a recipe with everything that it extends. [recipe] and [inputs] are always present,
    [small] never."""
    tables = _read(file, ())
    profile = tables[SMALL]
    if small:
        if not profile:
            raise QontextError(
                "the recipe has no small profile",
                place=file,
                remedy="Add a [small] table, or remove --small.",
            )
        tables = _extended(tables, profile, file)
    del tables[SMALL]
    for change in changes:
        _apply(change, tables, file)
    return tables


def find_recipe(name: str, folder: Path = Path()) -> Path:
    """The file of a recipe: a path, relative to the folder, or the name of a shipped recipe."""
    file = folder / name
    with contextlib.suppress(OSError):  # a name that is too long
        if file.is_file():
            return file
    if file.suffix or len(Path(name).parts) > 1:
        config.existing(file, "the recipe")
    return SHIPPED / f"{choose(name, [p.stem for p in shipped()], 'recipe')}.toml"


def shipped() -> list[Path]:
    """The files of the recipes that come with the package, by name."""
    return sorted(SHIPPED.glob("*.toml"), key=lambda path: path.stem)


def steps_of(tables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables that are steps."""
    return {name: table for name, table in tables.items() if name not in RESERVED}


def missing_inputs(tables: Tables) -> list[str]:
    """The inputs that a step uses and that have no value."""
    used = {
        value
        for table in steps_of(tables).values()
        for value in flat(table.values())
        if isinstance(value, str)
    }
    return [name for name, value in tables[INPUTS].items() if value == "" and f"${name}" in used]


def flat(values: Any) -> Iterator[Any]:
    """The values, and those in lists."""
    for value in values:
        yield from value if isinstance(value, list | tuple) else [value]


def _read(file: Path, readers: tuple[Path, ...]) -> Tables:
    """The tables of a file and of what it extends; `readers` are the files that extend it."""
    if file.resolve() in readers:
        raise QontextError(
            "the recipe extends itself", place=file, remedy="Remove one of the `extends` entries."
        )
    own = _parsed(file)
    about = own.get(RECIPE, {})
    for key in about:
        choose(key, ABOUT, f"key of [recipe] in {file.name}")
    tables: Tables = {name: {} for name in RESERVED}
    for name in _names(about, "extends", file):
        base = _read(find_recipe(name, file.parent), (*readers, file.resolve()))
        tables = _extended(tables, base, file)
    return _extended(tables, own, file)


def _parsed(file: Path) -> Tables:
    """The tables of one file, each of them a table with a name that a directory can have."""
    try:
        tables = config.parse_toml(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise QontextError(f"not a valid recipe: {error}", place=file) from None
    profile = tables.get(SMALL, {})
    inner = profile.items() if isinstance(profile, dict) else ()
    for name, table in [*tables.items(), *inner]:
        if not isinstance(table, dict):
            raise QontextError(f"{name!r} must be a table, such as [split], not a value", place=file)
        if not re.fullmatch(r"\w[\w.,=+-]{0,199}", name):
            raise QontextError(
                f"{name!r} is not a valid name of a step, which is also the name of its directory",
                place=file,
                remedy="Use at most 200 letters, digits, - and _.",
            )
    return tables


def _extended(base: Tables, own: Mapping[str, Any], file: Path) -> Tables:
    """The tables of `base`, overridden by those of `own`."""
    about = own.get(RECIPE, {})
    dropped = _names(about, "without", file)
    for name in dropped:
        choose(name, steps_of(base), f"step to leave out of {file.name}")
    kept = {name: table for name, table in steps_of(base).items() if name not in dropped}
    profile = {name: table for name, table in base[SMALL].items() if name not in dropped}
    tables: Tables = {
        RECIPE: {**base[RECIPE], **{k: v for k, v in about.items() if k not in ("extends", "without")}},
        INPUTS: {**base[INPUTS], **own.get(INPUTS, {})},
        SMALL: _small(profile, own.get(SMALL, {})),
    }
    new = {name: dict(table) for name, table in steps_of(own).items() if name not in kept}
    steps = {name: _replaced(table, steps_of(own).get(name, {})) for name, table in kept.items()} | new
    return tables | {name: steps[name] for name in _order(list(kept), list(new), steps, tables[INPUTS])}


def _small(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The small profile of a recipe that extends another: its settings override the other's."""
    return {**base, **{name: {**base.get(name, {}), **table} for name, table in own.items()}}


def _replaced(table: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a step, overridden by others; an empty value restores the default."""
    return {key: value for key, value in {**table, **own}.items() if key not in own or not _is_empty(value)}


def _order(kept: list[str], new: list[str], steps: Tables, inputs: Mapping[str, Any]) -> list[str]:
    """The names of all steps: a new one before the first kept step that needs it, or at the end."""
    order: list[str] = []
    for name in kept:
        needed: set[str] = set()
        waiting = [name]
        while waiting:
            more = _read_by(steps[waiting.pop()], inputs) & set(new) - needed
            needed |= more
            waiting += more
        order += [other for other in new if other in needed and other not in order]
        order.append(name)
    return order + [name for name in new if name not in order]


def _read_by(table: Mapping[str, Any], inputs: Mapping[str, Any]) -> set[str]:
    """The steps that the settings refer to, also through an input."""
    values = (
        inputs.get(v[1:]) if isinstance(v, str) and v.startswith("$") else v for v in flat(table.values())
    )
    return {v[1:].partition("/")[0] for v in values if isinstance(v, str) and v.startswith("@")}


def _names(about: Mapping[str, Any], key: str, file: Path) -> list[str]:
    """A key of [recipe] that is one name or several."""
    value = about.get(key, [])
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise QontextError(f"{key} must be a name or a list of names, not {value!r}", place=file)
    return names


def _apply(change: str, tables: Tables, file: Path) -> None:
    """Make one change to the tables; an empty value or null restores the default."""
    name, value = config.parse_assignment(change)
    table, _, field = name.partition(".")
    tables[choose(table, tables, f"step of {file.name}")][field] = None if _is_empty(value) else value


def _is_empty(value: Any) -> bool:
    return value in ("", "null")
