"""The tables of a recipe file: extended recipes, the arms of a sweep, the small profile, replacements.

[recipe]
extends = "base"            # a shipped recipe or a file beside this one; a list of them is read from left to right;
                            # { recipe = "base", steps = ["split"] } takes only these steps of it
without = ["filter"]        # steps of it to leave out; score-* is a pattern

[pretrain]                  # a step of the extended recipe: only these settings are replaced
context = "rand"
queries = ""                # back to the default

[generate]                  # a new step: it comes before the first step that needs it, or at the end
passages = "@split"

[sweep."two layers"]        # an arm of a sweep: what it changes, by the same rules; with `recipe.extends` from another start
pretrain.decoder_layers = 2

[small]                     # replacements of the small profile, by the same rules, after those of an arm
pretrain.steps = 20
"""

from __future__ import annotations

import contextlib
import fnmatch
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
ABOUT = ("title", "extends", "without", "published", "benchmarks", "cost", "arms", "examples")
"""The keys of [recipe]. `published` systems are shown on `benchmarks` (default: all). Of a sweep, `arms` are those that
are run, and `examples` is the evaluation of which it shows examples."""

Tables = dict[str, dict[str, Any]]


def read_tables(
    file: Path, *, small: bool = False, changes: tuple[str, ...] = (), arm: str | None = None
) -> Tables:
    """The tables of a recipe, or of an arm of a sweep, with everything that it extends. [recipe] and [inputs] are
    always present, [small] and [sweep] never."""
    tables = _read(file, (), arm)
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
    names = targets(tables, changes) if changes else []
    for change in changes:
        check_target(change, names, file)
        _apply(change, tables)
    return tables


def read_arms(file: Path, *, small: bool = False) -> list[str]:
    """The names of a sweep's arms; none if the file is a recipe."""
    own = _own(file)
    arms = own.get(SWEEP, {})
    about = {**own.get(RECIPE, {}), **(own.get(SMALL, {}).get(RECIPE, {}) if small else {})}
    names = _names(about, "arms", file)
    return [choose(name, arms, f"arm of {file.name}") for name in names] or list(arms)


def find_recipe(name: str, folder: Path = Path()) -> Path:
    """The file of a recipe: a path, relative to the folder, or the name of a shipped recipe."""
    file = folder / name
    with contextlib.suppress(OSError):  # a name that is too long
        if file.is_file():
            return file
    if file.suffix or len(Path(name).parts) > 1:
        config.existing(file, "the recipe")
    files = _shipped_files()
    return files[choose(name, files, "recipe")]


def shipped() -> list[Path]:
    """The files of the recipes that come with the package, by name."""
    return sorted(SHIPPED.glob("*.toml"), key=lambda path: path.stem)


def shipped_sweeps() -> list[Path]:
    """The files of the sweeps that come with the package, by name."""
    return sorted((SHIPPED / "sweeps").glob("*.toml"), key=lambda path: path.stem)


@functools.cache
def _shipped_files() -> dict[str, Path]:
    """Name → file of the recipes and sweeps that come with the package."""
    return {path.stem: path for path in (*shipped(), *shipped_sweeps())}


def steps_of(tables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables that are steps."""
    return {name: table for name, table in tables.items() if name not in RESERVED}


def missing_inputs(tables: Tables) -> list[str]:
    """The inputs that a step uses and that have no value."""
    inputs_used = {
        value
        for table in steps_of(tables).values()
        for value in flat(table.values())
        if isinstance(value, str)
    }
    inputs = tables[INPUTS]
    inputs_used |= {
        value for name, value in inputs.items() if f"${name}" in inputs_used and isinstance(value, str)
    }
    return [name for name, value in inputs.items() if value == "" and f"${name}" in inputs_used]


def explain_inputs(file: Path, names: list[str], *, small: bool) -> str:
    """The names of inputs, each with the comment behind it in the recipe or in one that it extends."""
    comments = _SET | _comments(file) | (_SET if small else {})
    return ", ".join(f"{name!r}" + (f" ({comments[name]})" if name in comments else "") for name in names)


_SET = {"data": "a labeled set in BEIR's layout: corpus.jsonl, queries.jsonl, qrels/train.tsv and so on"}
"""The `data` of recipes that do not name it, and of every small profile."""
_COMMENT = re.compile(r'^(?:inputs\.)?(\w+) = "" *# *(.+)$', re.M)


def _comments(file: Path) -> dict[str, str]:
    """Input → the comment behind its empty value, of a recipe, of the arms of a sweep and of what they extend."""
    own = _own(file)
    comments: dict[str, str] = {}
    for about in (own, *own.get(SWEEP, {}).values()):
        for name, _ in _bases(about.get(RECIPE, {}), file):
            comments |= _comments(find_recipe(name, file.parent))
    found = _COMMENT.findall(file.read_text(encoding="utf-8-sig"))
    return comments | {name: comment.strip() for name, comment in reversed(found)}


def called(file: Path) -> str:
    """A recipe in messages: the name of one that comes with the package, or a path."""
    return file.stem if SHIPPED in file.parents else str(file)


def flat(values: Any) -> Iterator[Any]:
    """The values, and those in lists."""
    for value in values:
        yield from value if isinstance(value, list | tuple) else [value]


def _read(file: Path, readers: tuple[Path, ...], arm: str | None = None) -> Tables:
    """The tables of a file, or of an arm of it, and of what it extends; `readers` are the files that extend it."""
    if file.resolve() in readers:
        raise QontextError(
            "the recipe extends itself", place=file, remedy="Remove one of the `extends` entries."
        )
    own = _own(file)
    arm_tables = {} if arm is None else own[SWEEP][choose(arm, own.get(SWEEP, {}), f"arm of {file.name}")]
    abouts = own.get(RECIPE, {}), arm_tables.get(RECIPE, {})
    for key in (key for about in abouts for key in about):
        choose(key, ABOUT, f"key of [recipe] in {file.name}")
    tables: Tables = {name: {} for name in RESERVED}
    for name, steps in _bases({**abouts[0], **abouts[1]}, file):
        base = _read(find_recipe(name, file.parent), (*readers, file.resolve()))
        tables = _extended(tables, base if steps is None else _part(base, steps, file), file)
    return _extended(_extended(tables, own, file), arm_tables, file)


def _own(file: Path) -> Tables:
    """The tables of one file, to be left as they are: files that come with the package are parsed once."""
    if not is_shipped(file):
        return _parsed(file)
    tables = _parsed_once(file)
    trust.give(tables)  # what comes with the package is no file from others
    return tables


def is_shipped(file: Path) -> bool:
    """True if a file comes with the package, wherever ``..`` and links in its path lead."""
    return SHIPPED.resolve() in file.resolve().parents


def _parsed(file: Path) -> Tables:
    """The tables of one file, each of them a table with a name that a directory can have."""
    try:
        tables = config.parse_toml(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise QontextError(f"not a valid recipe: {error}", place=file) from None
    _check_names(tables, file)
    _check_names(tables.get(SMALL, {}), file)
    for arm, changes in tables.get(SWEEP, {}).items():
        if not isinstance(changes, dict) or not 0 < len(arm) <= 100:
            raise QontextError(
                f"the arm {arm[:100]!r} of [sweep] must be a table with a name of at most 100 characters",
                place=file,
            )
        _check_names(changes, file)
        _check_names(changes.get(SMALL, {}), file)
    return tables


_parsed_once = functools.cache(_parsed)


def _check_names(tables: Mapping[str, Any], file: Path) -> None:
    """Every value is a table, with a name that a directory can have."""
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise QontextError(f"{name!r} must be a table, such as [split], not a value", place=file)
        if not re.fullmatch(r"\w[\w.,=+-]{0,199}", name):
            raise QontextError(
                f"{name!r} is not a valid name of a step, which is also the name of its directory",
                place=file,
                remedy="Use at most 200 letters, digits, - and _.",
            )


def _extended(base: Tables, own: Mapping[str, Any], file: Path) -> Tables:
    """The tables of `base`, overridden by those of `own`."""
    about = own.get(RECIPE, {})
    dropped = _dropped(_names(about, "without", file), list(steps_of(base)), file)
    remaining = {name: table for name, table in steps_of(base).items() if name not in dropped}
    profile = {name: table for name, table in base[SMALL].items() if name not in dropped}
    if unneeded := profile.get(RECIPE, {}).get("without"):
        unknown = [name for name in unneeded if name not in dropped]
        profile[RECIPE] = {**profile[RECIPE], "without": unknown}
    tables: Tables = {
        RECIPE: {**base[RECIPE], **{k: v for k, v in about.items() if k not in ("extends", "without")}},
        INPUTS: {**base[INPUTS], **own.get(INPUTS, {})},
        SMALL: _small(profile, own.get(SMALL, {})),
        SWEEP: {},
    }
    new = {name: dict(table) for name, table in steps_of(own).items() if name not in remaining}
    steps = {name: _replaced(table, steps_of(own).get(name, {})) for name, table in remaining.items()} | new
    return tables | {name: steps[name] for name in _order(list(remaining), list(new), steps, tables[INPUTS])}


def _part(base: Tables, steps: list[str], file: Path) -> Tables:
    """Some steps of a recipe, with the inputs that they refer to."""
    for name in steps:
        choose(name, steps_of(base), f"step to take into {file.name}")
    remaining = {name: table for name, table in steps_of(base).items() if name in steps}
    profile = {name: table for name, table in base[SMALL].items() if name in steps}
    inputs_used = {
        v[1:]
        for table in (*remaining.values(), *profile.values())
        for v in flat(table.values())
        if is_input(v)
    }
    inputs, small = (
        {k: v for k, v in values.items() if k in inputs_used}
        for values in (base[INPUTS], base[SMALL].get(INPUTS, {}))
    )
    return {RECIPE: {}, INPUTS: inputs, SMALL: {INPUTS: small, **profile}, SWEEP: {}, **remaining}


def is_input(value: Any) -> bool:
    """True if the value refers to an input."""
    return isinstance(value, str) and value.startswith("$")


def _dropped(patterns: list[str], steps: list[str], file: Path) -> set[str]:
    """The steps to leave out, by name or by a pattern such as score-*; each names at least one."""
    dropped: set[str] = set()
    for pattern in patterns:
        matches = fnmatch.filter(steps, pattern)
        dropped |= {*matches} if matches else {choose(pattern, steps, f"step to leave out of {file.name}")}
    return dropped


def _small(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The small profile of a recipe that extends another: its settings override the other's."""
    return {**base, **{name: {**base.get(name, {}), **table} for name, table in own.items()}}


def _replaced(table: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a step, overridden by others; an empty value restores the default."""
    return {key: value for key, value in {**table, **own}.items() if key not in own or not _is_empty(value)}


def _order(old: list[str], new: list[str], steps: Tables, inputs: Mapping[str, Any]) -> list[str]:
    """The names of all steps: a new one before the first kept step that needs it, or at the end."""
    order: dict[str, None] = {}
    place = {name: number for number, name in enumerate(new)}
    for name in old:
        needed: set[str] = set()
        waiting = [name]
        while waiting:  # what is in the order already comes after all that it needs itself
            more = {
                other
                for other in _read_by(steps[waiting.pop()], inputs)
                if other in place and other not in needed and other not in order
            }
            needed |= more
            waiting += more
        order |= dict.fromkeys(sorted(needed, key=place.__getitem__))
        order[name] = None
    return list(order | dict.fromkeys(new))


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


def _bases(about: Mapping[str, Any], file: Path) -> list[tuple[str, list[str] | None]]:
    """The recipes that [recipe] extends, each with the steps that are taken; None: all."""
    value = about.get("extends", [])
    bases: list[tuple[str, list[str] | None]] = []
    for base in value if isinstance(value, list) else [value]:
        if isinstance(base, dict) and {*base} == {"recipe", "steps"}:
            (name,), steps = _names(base, "recipe", file), _names(base, "steps", file)
            bases.append((name, steps))
        else:
            bases += [(name, None) for name in _names({"extends": base}, "extends", file)]
    return bases


def _apply(change: str, tables: Tables) -> None:
    """Make one change to the tables; an empty value or null restores the default."""
    name, value = config.parse_assignment(change)
    trust.give(value)
    table, _, field = name.partition(".")
    tables[table][field] = None if _is_empty(value) else value


def check_target(change: str, names: Iterable[str], file: Path) -> None:
    """Refuse a change of what is not among the names."""
    name = target_of(change)
    choose(name, names, f"{'input' if name.startswith(f'{INPUTS}.') else 'step'} of {file.name}")


def target_of(change: str) -> str:
    """The target of a change: a step, ``inputs.name`` or ``recipe.key``."""
    name, _ = config.parse_assignment(change)
    table = name.partition(".")[0]
    return name if table in (INPUTS, RECIPE) else table


def targets(tables: Tables, changes: Iterable[str] = ()) -> list[str]:
    """The targets of changes: steps, inputs, with those that only a setting or a change refers to, and what the recipe says
    of itself."""
    readers = (*steps_of(tables).values(), tables[INPUTS])
    values = (*(table.values() for table in readers), [config.parse_assignment(c)[1] for c in changes])
    used = (value[1:] for some in values for value in flat(some) if is_input(value))
    inputs = [f"{INPUTS}.{name}" for name in dict.fromkeys([*tables[INPUTS], *used])]
    # The others have had their effect by then.
    about = [f"{RECIPE}.{key}" for key in ABOUT if key not in ("extends", "without", "arms")]
    return [*steps_of(tables), *inputs, *about]


def _is_empty(value: Any) -> bool:
    return value in ("", "null")
