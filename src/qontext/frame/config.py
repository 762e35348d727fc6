"""Configurations: one class per stage, documented under each field, checked at construction.

The same object serves the command line (a flag per field), TOML recipes (a key per field) and Python
calls (a keyword per field). Marks on fields:

- ``Input``: a path or name that is read. Its content is fingerprinted, to detect changes upstream.
- ``Machine``: how the work is executed (processes, device). It does not affect the result (beyond the order
  of floating-point sums, and dropout on a GPU), so it is not part of a run's identity.
- ``Action``: what this call does, such as a dry run. It is not part of a run's identity, either.
- ``Asks``: a setting that a file needs the user's word for, such as the address of a server (see `trust`).
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from qontext.frame.errors import QontextError, choose
from qontext.frame.files import require_regular
from qontext.frame.kinds import Kinds
from qontext.frame.trust import Demand


@dataclass(frozen=True)
class Input:
    """Marks a field that names an input; `positional` makes it a positional argument on the command line.

    Without `by_content`, the value itself is used (for example, a question). `fingerprint` hashes names that
    are not paths, and folders of which not all is read; for all others it returns None, and the content of the file or
    folder is hashed. `reads_below` says of a folder whether all that is below it is read, so that no output may be
    written there. With `or_one`, one name stands for a list of one.
    """

    positional: bool = False
    by_content: bool = True
    fingerprint: Callable[[str], str | None] | None = None
    reads_below: Callable[[Path], bool] | None = None
    or_one: bool = False


@dataclass(frozen=True)
class Machine:
    """Marks a field that says how to compute, not what."""


@dataclass(frozen=True)
class Action(Machine):
    """Marks a switch for what this call does, such as planning only. It does not affect the result, either."""


@dataclass(frozen=True)
class Advanced:
    """Marks a field that few people set: in a long help page, it is only named; `--help-all` explains it."""


@dataclass(frozen=True)
class Asks:
    """Marks a field by which a file can ask for more than computing with its inputs: `demands` are those of settings."""

    demands: Callable[[Mapping[str, Any]], Iterable[Demand]]


Mark = TypeVar("Mark", Input, Machine, Action, Advanced, Asks)

Seed = Annotated[int, Field(ge=0, lt=2**63)]
LARGEST = 1_000_000_000
"""The largest number that a setting accepts, unless it has its own upper bound."""


class StageConfig(BaseModel):
    """Base of every stage's configuration: frozen, no unknown keys, documentation under each field.

    A field may choose one of several kinds, such as a method; its table is then listed under `kinds`. The options of the
    chosen kind are settings beside the others: `with_options` is the class that has them.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    kinds: ClassVar[Mapping[str, Kinds]] = {}
    """Fields that choose a kind → the table of the kinds."""

    chosen: ClassVar[Mapping[str, Chosen]] = {}
    """Fields that choose a kind → the chosen kind."""

    @classmethod
    def make(cls, values: dict[str, Any], *, where: str) -> Self:
        """Construct from untrusted values; an invalid value raises an error whose message starts with `where`."""
        config = cls.accepting(values, where)
        try:
            return config(**values)
        except ValidationError as error:
            raise QontextError(
                "; ".join(_sentence(e, where) for e in error.errors()),
                remedy=f"See: qontext {where.split()[0]} --help",
            ) from None

    @classmethod
    def accepting(cls, values: Mapping[str, Any], where: str) -> type[Self]:
        """The class with the options of the kinds that the values choose; an error if a value has no setting."""
        config = cls.with_options(values)
        for name in values:
            if name not in config.model_fields:
                cls.refuse_unread(name, values)
                choose(name, config.model_fields, f"setting of {where}")
        return config

    @classmethod
    def with_options(cls, values: Mapping[str, Any], *, defaults: bool = True) -> type[Self]:
        """This class with the options of the kinds that the values choose; without `defaults`, only of kinds
        named in the values."""
        names = []
        for field in cls.kinds:
            name = values.get(field)
            if name is None and defaults:
                name = cls.model_fields[field].get_default()
            if isinstance(name, str):
                names.append((field, name))
        return _with_options(cls, tuple(names)) if names else cls

    @classmethod
    def demands(cls, values: Mapping[str, Any]) -> Iterator[Demand]:
        """The demands of a file with these settings: code, hosts, secrets. Nothing of it is imported."""
        own = dict(values)
        for field, table in cls.kinds.items():
            if isinstance(name := values.get(field), str) and table.is_foreign(name):
                yield from table.demands(name)
                del own[field]
        config = cls.with_options(own)
        for field in config.model_fields:
            if (mark := marked(config, field, Asks)) is not None:
                yield from mark.demands(values)

    @classmethod
    def refuse_unread(cls, name: str, values: Mapping[str, Any]) -> None:
        """Raise an error if only kinds that were not chosen read the setting `name`."""
        for field, table in cls.kinds.items():
            info = cls.model_fields[field]
            kind = values.get(field) or (None if info.is_required() else info.get_default())
            if kind and (readers := table.readers(name)):
                raise QontextError(
                    f"{name} is not read by the {table.noun} {kind!r}, only by {', '.join(readers)}"
                )

    def options(self, field: str) -> Any:
        """Only the options of the kind that the field chooses."""
        options = type(self).chosen[field].options
        return options.model_construct(**{name: getattr(self, name) for name in options.model_fields})

    @field_validator("*", mode="after")
    @classmethod
    def _within_reason(cls, value: Any, info: ValidationInfo) -> Any:
        """Default bounds for every field."""
        field = info.field_name or ""
        constraints = cls.model_fields[field].metadata
        is_path = field == "out" or any(isinstance(c, Input) and c.by_content for c in constraints)
        is_bounded = any(hasattr(c, "le") or hasattr(c, "lt") for c in constraints)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, str) and (problem := problem_of_name(item, is_path=is_path)):
                raise ValueError(problem)
            if isinstance(item, int | float) and not is_bounded and abs(item) > LARGEST:
                raise ValueError(f"input should be between -{LARGEST:,} and {LARGEST:,}")
        is_of_a_home = field == "out" and isinstance(value, str) and value.startswith("~")
        return str(Path(value).expanduser()) if is_of_a_home else value

    def identity(self) -> dict[str, Any]:
        """The settings that determine the result: all except input paths, machine settings and a pipeline's
        `out`."""
        skip = {name for name in type(self).model_fields if marked(type(self), name, Machine)}
        skip |= {*type(self).inputs(), "out"}
        dumped: dict[str, Any] = self.model_dump(mode="json", exclude=skip)
        return dumped

    @classmethod
    def inputs(cls) -> dict[str, Input]:
        """The input fields, with their marks."""
        marks = {name: marked(cls, name, Input) for name in cls.model_fields}
        return {name: mark for name, mark in marks.items() if mark is not None}


class DeviceConfig(StageConfig):
    """Base of configurations of what computes on a device."""

    device: Annotated[str, Machine()] = "auto"
    """Device: auto, cpu, cuda, cuda:N or mps."""


class ComputeConfig(DeviceConfig):
    """Base of configurations of what a model computes, in a number format."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format of the computation; auto is bf16 if the hardware supports it, else fp32."""


class Options(StageConfig):
    """Base class of a kind's options, defined in the kind's file."""


class Chosen(NamedTuple):
    """A chosen kind: its name and options."""

    name: str
    options: type[Options]


@functools.cache
def _with_options(config: type[StageConfig], names: tuple[tuple[str, str], ...]) -> Any:
    kinds: dict[str, Chosen] = {}
    for field, name in names:
        table = config.kinds[field]
        options = table.options(name)
        if not (isinstance(options, type) and issubclass(options, Options)):
            raise QontextError(
                f"the Options of the {table.noun} {name!r} are not a subclass of qontext.frame.config.Options"
            )
        if clashes := sorted(options.model_fields.keys() & config.model_fields.keys()):
            raise QontextError(
                f"the {table.noun} {name!r} has an option {clashes[0]!r}, which is already the name of a setting",
                remedy="Rename the option.",
            )
        kinds[field] = Chosen(name, options)
    members = {"__module__": config.__module__, "__doc__": config.__doc__, "chosen": kinds}
    own = [*dict.fromkeys(kind.options for kind in kinds.values())]
    # A subclass brings its base: `Options` alone, beside others, would come first.
    own = [one for one in own if not any(other is not one and issubclass(other, one) for other in own)]
    bases = (config, *own)
    return types.new_class(config.__name__, bases, exec_body=lambda body: body.update(members))


def marked(config: type[StageConfig], field: str, mark: type[Mark]) -> Mark | None:
    """The field's mark of that type, if it has one."""
    return next((m for m in config.model_fields[field].metadata if isinstance(m, mark)), None)


def plain_type(info: FieldInfo) -> Any:
    """The field's type without constraints, for the command line."""
    annotation = info.annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = [a for a in typing.get_args(annotation) if a is not type(None)]
        base = kinds[0] if len(kinds) == 1 else str
        base = typing.get_args(base)[0] if typing.get_origin(base) is Annotated else base
        return base | None if type(None) in typing.get_args(annotation) else base
    return annotation


def parse_assignment(text: str) -> tuple[str, Any]:
    """`stage.field=value` → (`stage.field`, value); the value is parsed as TOML, or kept as text if it is not TOML."""
    name, sign, value = text.partition("=")
    if not sign or "." not in name:
        raise QontextError(f"cannot read the setting {text!r}", remedy="Write it as stage.field=value.")
    try:
        return name.strip(), parse_toml(f"value = {value}")["value"]
    except ValueError:
        return name.strip(), value.strip()


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML text; a ValueError if it is not TOML, nested too deeply or too long."""
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def problem_of_name(text: str, *, is_path: bool = False) -> str:
    """The reason that this text can be neither a path nor a setting recorded in JSON; empty if it can."""
    if is_path and not text.strip():
        return "is an empty name"
    if "\0" in text:
        return "contains a NUL character"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "contains bytes that are not UTF-8"
    if is_path:
        try:
            Path(text).expanduser()
        except RuntimeError:
            return f"the home directory of {text.partition('/')[0]} is unknown"
    return ""


def _sentence(error: Any, where: str) -> str:
    field = ".".join(str(part) for part in error["loc"])
    value = "" if error["type"] == "missing" or isinstance(error["input"], dict) else f" = {error['input']!r}"
    message = error["msg"].removeprefix("Value error, ")
    sentence = message[:1].lower() + message[1:]
    return f"{where}: {field}{value}: {sentence}" if field else f"{where}: {sentence}"


def existing(path: Path | str, what: str, remedy: str | None = None) -> Path:
    """The path, if a file or folder exists there; else an error that says what was expected."""
    expanded = Path(path).expanduser()
    try:
        is_there = expanded.exists()
    except (OSError, ValueError) as error:  # the name is too long or invalid
        raise QontextError(f"{what} is not a valid path: {error}") from None
    if not is_there:
        near = (
            f"{expanded.parent} does not exist either"
            if not expanded.parent.exists()
            else "no such file or folder"
        )
        raise QontextError(f"cannot read {what}: {near}", place=path, remedy=remedy)
    return expanded if expanded.is_dir() else require_regular(expanded)
