"""Kinds: implementations that are chosen by name, from the package's tables or from user code.

A table maps each name to a class, as ``module:Class``; the module is imported when the kind is chosen, so
that listing the names is fast. Besides the names in its table, a name may be

- an entry point of an installed package in the table's group,
- ``module:Class``: any class that can be imported, also from modules in the current directory. Importing it runs code, so
  it has to be the user's word: `trust` refuses a name that only a file gives. Of a class that the program has imported
  already, nothing runs.

The settings of the class are its `Options`, defined in the same file.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any

from qontext.frame import trust
from qontext.frame.errors import QontextError, choose


@dataclass(frozen=True)
class Kind:
    """An entry of a table: the class, as ``module:Class``, and its description for the help."""

    implementation: str
    about: str


@dataclass(frozen=True)
class Kinds:
    """The kinds of one thing. `noun` names the thing in messages; `group` is the entry point group for other
    packages; `base` is the base class of all kinds, as ``module:Class``.
    """

    noun: str
    group: str
    base: str
    own: Mapping[str, Kind]
    """The kinds that come with the package, by name."""

    def __hash__(self) -> int:
        return hash(self.group)

    def names(self) -> list[str]:
        """The names in this table and the entry points of installed packages."""
        return [*self.own, *(point.name for point in self._offered() if point.name not in self.own)]

    def about(self) -> str:
        """All names with their descriptions: ``mlm (the baseline), …``."""
        own = [f"{name} ({kind.about})" for name, kind in self.own.items()]
        return ", ".join([*own, *self.names()[len(own) :]])

    def load(self, name: str, *, place: Path | None = None) -> Any:
        """The class of a kind, imported now. `place` is the file that names it, if one does."""
        if self.is_foreign(name) and (loaded := self._loaded(name)) is not None:
            return loaded
        trust.require(self.demands(name), place)
        return _load(self, name)

    def name_of(self, where: str) -> str:
        """The name of the class at ``module:Class``: that in the table or of an installed package, else ``module:Class``."""
        own = {kind.implementation: name for name, kind in self.own.items()}
        return own.get(where) or {point.value: point.name for point in self._offered()}.get(where, where)

    def is_foreign(self, name: str) -> bool:
        """True if the name is a ``module:Class``, neither in this table nor of an installed package."""
        return ":" in name and name not in self.names()

    def demands(self, name: str) -> Iterator[trust.Demand]:
        """The demands of a file that names this kind."""
        if self.is_foreign(name) and self._loaded(name) is None:
            yield trust.Demand(f"run the code of the {self.noun} {name!r}", (name,), code=name)

    def _loaded(self, name: str) -> type | None:
        """The class, if the program has imported it already."""
        module, attribute = _split(name)
        if module not in sys.modules:
            return None
        kinds = [resolve(self.base)]
        for kind in kinds:
            kinds += kind.__subclasses__()
        matches = (kind for kind in kinds if (kind.__module__, kind.__qualname__) == (module, attribute))
        return _checked(self, kind, name) if (kind := next(matches, None)) is not None else None

    def options(self, name: str) -> Any:
        """The class of the options that a kind reads."""
        return self.load(name).Options

    def readers(self, option: str) -> list[str]:
        """The kinds that read an option."""
        return [name for name in self.own if option in self.options(name).model_fields]

    def _offered(self) -> tuple[EntryPoint, ...]:
        """The entry points of installed packages. What the current folder says of itself is not installed: it is only on
        the path because a class of it was named, or Python was started in it."""
        here = os.path.realpath(os.curdir)
        named = {
            os.path.realpath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path
        }
        path = sys.path if here in named else [path for path in sys.path if os.path.realpath(path) != here]
        return tuple(point for point in _entry_points(*map(_state, path)) if point.group == self.group)


def _state(path: str) -> tuple[str, int]:
    """A folder of packages and the time of its last change: an installation is one."""
    with contextlib.suppress(OSError):
        return path, Path(path).stat().st_mtime_ns
    return path, 0


@functools.lru_cache(maxsize=8)
def _entry_points(*path: tuple[str, int]) -> tuple[EntryPoint, ...]:
    """The entry points of the packages in these folders, of which the first with a name counts. Reading those of some
    hundred packages takes a fifth of a second, and every recipe's settings are checked against them."""
    packages = {
        package.name: package for package in reversed([*distributions(path=[name for name, _ in path])])
    }
    return tuple(point for package in packages.values() for point in package.entry_points)


@functools.cache
def _load(kinds: Kinds, name: str) -> Any:
    if name in kinds.own:
        return resolve(kinds.own[name].implementation)
    point = next((point for point in kinds._offered() if point.name == name), None)
    if point is None and ":" not in name:
        try:
            choose(name, kinds.names(), kinds.noun)
        except QontextError as error:
            raise QontextError(
                error.message, remedy=f"{error.remedy} For your own class, use module:Class."
            ) from None
    where = point.value if point is not None else name
    return _checked(kinds, _import(kinds, where), where)


def _checked(kinds: Kinds, kind: Any, where: str) -> type:
    """The class, if it is what the contract says."""
    base = resolve(kinds.base)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise QontextError(
            f"the {kinds.noun} {where!r} is not a subclass of {base.__module__}.{base.__qualname__}",
            remedy="See docs/extending.md.",
        )
    return kind


def _import(kinds: Kinds, where: str) -> Any:
    """Import the class at ``module:Class``."""
    module, attribute = _split(where)
    if not module or not attribute:
        raise QontextError(f"the {kinds.noun} {where!r} is not of the form module:Class")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # at the end, so that a folder does not shadow installed packages
    try:
        return _attribute(module, attribute)
    except ModuleNotFoundError as error:
        raise QontextError(
            f"the {kinds.noun} {where!r} cannot be imported: there is no module {error.name!r}",
            remedy="Install its package, or run the command in the folder that contains it.",
        ) from error


def _split(where: str) -> tuple[str, str]:
    module, _, attribute = where.partition(":")
    return module.strip(), attribute.strip()


def resolve(where: str) -> Any:
    """The class at ``module:Class``."""
    return _attribute(*_split(where))


def _attribute(module: str, attribute: str) -> Any:
    return functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
