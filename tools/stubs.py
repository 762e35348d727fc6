"""The type stub of `qontext.api`, generated from the verbs' configurations by `python tools/stubs.py`.

Each verb is a function with its settings as keywords, so that editors complete them and type checkers check them.
"""

from __future__ import annotations

import inspect
import textwrap
import types
import typing
from pathlib import Path
from typing import Any

from qontext.frame import stages
from qontext.frame.config import Input, StageConfig, marked
from qontext.frame.stages import Command, Stage

STUB = Path(__file__).parents[1] / "src" / "qontext" / "api.pyi"
_HEAD = '''"""Every verb as a typed Python function. Generated from the configurations by `python tools/stubs.py`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, overload

from qontext.adapt.result import Adapted
from qontext.frame.artifacts import Artifact
from qontext.retrieve.searcher import Answers
'''
_SOURCE = "str | Path | Artifact"


def stub() -> str:
    """The content of `api.pyi`."""
    return "\n".join([_HEAD, *(_function(verb) for verb in stages.VERBS)])


def _function(verb: str) -> str:
    if stages.VERBS[verb].takes_objects:
        return f"from {stages.VERBS[verb].module} import {verb} as {verb}\n"
    loaded = stages.load(verb)
    inputs = loaded.config.inputs()
    positional = [name for name, mark in inputs.items() if mark.positional]
    keyword_only = [name for name in loaded.config.model_fields if name not in positional]
    lines = [f"    {_parameter(loaded.config, name)}," for name in positional]
    keywords = [
        f"    {_parameter(loaded.config, name)}," for name in sorted(keyword_only, key=_needed(loaded.config))
    ]
    keywords += [f"    {option}," for option in _options(loaded.config)]
    keywords.append("    trust: bool = False,")
    if isinstance(loaded, Stage):
        other = _returned(loaded.without_out) if loaded.without_out else ""
        out = "str | Path | None = None" if other == "Artifact" else "str | Path"
        keywords = [f"    out: {out},", *keywords, "    overwrite: bool = False,"]
        returns = "Artifact"
    else:
        returns, other = _returned(loaded), ""
    lines += ["    *,", *keywords]
    help_text = textwrap.indent(f'"""{stages.VERBS[verb].help}"""', "    ")
    lines_of_stub = [f"def {verb.replace('-', '_')}(", *lines, f") -> {returns}:", help_text, ""]
    if not isinstance(loaded, Stage) and loaded.returned and "dry_run" in loaded.config.model_fields:
        return _with_dry_run(lines_of_stub)
    if other in ("", returns):
        return "\n".join(lines_of_stub)
    without = [line.replace("out: str | Path,", "out: None = None,") for line in lines]
    without_out = [lines_of_stub[0], *without, f") -> {other}:", help_text, ""]
    return "\n".join(["@overload", *lines_of_stub, "@overload", *without_out])


def _with_dry_run(lines: list[str]) -> str:
    """The function, and that of a dry run, which returns its plan."""
    setting = "    dry_run: bool = False,"
    assert setting in lines
    real = [line.replace(setting, "    dry_run: Literal[False] = False,") for line in lines]
    dry = [
        ") -> dict[str, Any]:"
        if line.startswith(") -> ")
        else line.replace(setting, "    dry_run: Literal[True],")
        for line in lines
    ]
    return "\n".join(["@overload", *real, "@overload", *dry])


def _returned(command: Command[Any]) -> str:
    """The type of the result of the Python function."""
    return inspect.get_annotations(command.returned)["return"] if command.returned else "dict[str, Any]"


def _options(config: type[StageConfig]) -> list[str]:
    """The options of the built-in kinds; where types or defaults differ, their union."""
    kinds_of: dict[str, dict[str, None]] = {}
    defaults: dict[str, dict[str, None]] = {}
    for table in config.kinds.values():
        for kind in table.own:
            options = table.options(kind)
            for name, info in options.model_fields.items():
                kinds, _, default = _parameter(options, name).removeprefix(f"{name}: ").partition(" = ")
                kinds_of.setdefault(name, {}).update(dict.fromkeys(kinds.split(" | ")))
                defaults.setdefault(name, {})[default if not info.is_required() else "..."] = None
    return [
        f"{name}: {' | '.join(sorted(kinds, key=lambda kind: kind == 'None'))}"
        f" = {next(iter(defaults[name])) if len(defaults[name]) == 1 else '...'}"
        for name, kinds in kinds_of.items()
    ]


def _needed(config: type[StageConfig]) -> Any:
    """Sorts settings without a default before the others."""
    return lambda name: not config.model_fields[name].is_required()


def _parameter(config: type[StageConfig], name: str) -> str:
    info = config.model_fields[name]
    mark = marked(config, name, Input)
    kind = _type(
        info.annotation,
        _SOURCE if mark is not None and mark.by_content else "str | Path" if name == "out" else "str",
    )
    if mark is not None and mark.or_one:
        kind = f"{_SOURCE} | {kind}"
    if name in config.kinds:  # editors complete the names; any module:Class is valid, too
        kind = f"Literal[{', '.join(map(repr, config.kinds[name].own))}] | {kind}"
    return f"{name}: {kind}" if info.is_required() else f"{name}: {kind} = {info.default!r}"


def _type(annotation: Any, text: str) -> str:
    """The annotation as source code; `text` replaces `str`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        kinds = dict.fromkeys(part for a in arguments for part in _type(a, text).split(" | "))
        return " | ".join(sorted(kinds, key=lambda kind: kind == "None"))
    if origin is typing.Annotated:
        return _type(arguments[0], text)
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is tuple:
        item = _type(arguments[0], text)
        return f"Sequence[{item}]"
    if origin is dict:
        return f"dict[{', '.join(_type(a, 'str') for a in arguments)}]"
    if annotation is type(None):
        return "None"
    if annotation is str:
        return text
    return "Any" if annotation is Any else str(annotation.__name__)


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
