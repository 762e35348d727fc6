"""Configurations: one class per stage, documented under each field, checked at construction.

The same object serves the command line (a flag per field), TOML recipes (a key per field) and Python
calls (a keyword per field). Two marks say what a field is to the machinery:

- ``Input``: a path or name that is read. Its content is fingerprinted, so a change upstream is noticed.
- ``Machine``: how the work is done here (processes, device). It never changes the result, so it is
  not part of what makes two runs the same.
"""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from qontext.errors import QontextError, choose


@dataclass(frozen=True)
class Input:
    """Marks a field that names something to read; `positional` makes it an argument on the command line.

    With `by_content` off it is taken as it stands: a question, say.
    """

    positional: bool = False
    by_content: bool = True


@dataclass(frozen=True)
class Machine:
    """Marks a field that says how to work, not what to make."""


Mark = TypeVar("Mark", Input, Machine)


class StageConfig(BaseModel):
    """Base of every stage's configuration: frozen, no unknown keys, documentation under each field."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @classmethod
    def make(cls, values: dict[str, Any], *, where: str) -> Self:
        """Construct from untrusted values; what does not fit is one sentence that starts with `where`."""
        for name in values:
            choose(name, cls.model_fields, f"setting of {where}")
        try:
            return cls(**values)
        except ValidationError as error:
            raise QontextError(
                "; ".join(_sentence(e, where) for e in error.errors()),
                remedy=f"See: qontext {where.split()[0]} --help",
            ) from None

    def identity(self) -> dict[str, Any]:
        """The settings that determine the result: everything but inputs' paths and machine settings."""
        skip = {name for name in type(self).model_fields if marked(type(self), name, Machine)}
        skip |= set(type(self).inputs())
        dumped: dict[str, Any] = self.model_dump(mode="json", exclude=skip)
        return dumped

    @classmethod
    def inputs(cls) -> dict[str, Input]:
        """The fields that are read, with their marks."""
        found = {name: marked(cls, name, Input) for name in cls.model_fields}
        return {name: mark for name, mark in found.items() if mark is not None}


def marked(config: type[StageConfig], field: str, mark: type[Mark]) -> Mark | None:
    """The field's mark of that kind, if it has one."""
    return next((m for m in config.model_fields[field].metadata if isinstance(m, mark)), None)


def plain_type(info: FieldInfo) -> Any:
    """The field's type without its constraints, as the command line declares it."""
    annotation = info.annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = [a for a in typing.get_args(annotation) if a is not type(None)]
        base = kinds[0] if len(kinds) == 1 else str
        return base | None if type(None) in typing.get_args(annotation) else base
    return annotation


def parse_assignment(text: str) -> tuple[str, Any]:
    """`stage.field=value` → (`stage.field`, value), the value read as TOML where it is TOML, else as text."""
    import tomllib

    name, sign, value = text.partition("=")
    if not sign or "." not in name:
        raise QontextError(f"cannot read the setting {text!r}", remedy="Write it as stage.field=value.")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()


def _sentence(error: Any, where: str) -> str:
    field = ".".join(str(part) for part in error["loc"]) or "settings"
    given = "" if error["type"] == "missing" or isinstance(error["input"], dict) else f" = {error['input']!r}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {field}{given}: {message[:1].lower()}{message[1:]}"


def existing(path: Path | str, what: str) -> Path:
    """The path, if it exists; else an error that says what was expected there."""
    found = Path(path).expanduser()
    try:
        is_there = found.exists()
    except (OSError, ValueError) as error:  # a name that is too long, or no name at all
        raise QontextError(f"{what} is not a name that can be read: {error}") from None
    if not is_there:
        near = (
            f"{found.parent} does not exist either" if not found.parent.exists() else "no such file or folder"
        )
        raise QontextError(f"cannot read {what}: {near}", place=path)
    return found
