"""Settings as a list of definitions: flag, type, bounds, default, and the docstring under the field."""

from __future__ import annotations

import html
import typing
from collections.abc import Iterable
from typing import Any

from qontext.frame.config import StageConfig, plain_type

from .text import inline

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def definitions(config: type[StageConfig], names: Iterable[str], *, positional: Iterable[str] = ()) -> str:
    """The list of the named settings."""
    rows = [_row(config, name, name in positional) for name in names]
    return "\n".join(['<dl class="settings" markdown="0">', *rows, "</dl>"])


def entry(flag: str, facts: Iterable[str], text: str) -> str:
    """One definition; its anchor is the flag without dashes."""
    anchor = flag.split()[-1 if flag.startswith("-o") else 0].rstrip(",").strip("-").lower()
    shown = "".join(f" <span>{fact}</span>" for fact in facts)
    return (
        f'<dt id="{anchor}"><a href="#{anchor}"><code>{html.escape(flag, quote=False)}</code></a>{shown}</dt>\n'
        f"<dd>{text}</dd>"
    )


def _row(config: type[StageConfig], name: str, is_positional: bool) -> str:
    info = config.model_fields[name]
    kind = plain_type(info)
    flag = name.upper() if is_positional else f"--{name.replace('_', '-')}"
    if kind is bool and not is_positional:
        flag = f"{flag} / --no-{flag[2:]}"
    bounds = [
        f"{sign} {_number(getattr(mark, bound))}"
        for mark in info.metadata
        for bound, sign in _BOUNDS.items()
        if hasattr(mark, bound) and abs(getattr(mark, bound)) < 2**62
    ]
    facts = [" ".join(filter(None, [_type(kind), ", ".join(bounds)]))]
    default = None if info.is_required() else info.get_default(call_default_factory=True)
    if info.is_required():
        facts.append("required")
    elif default is not None and default != ():
        facts.append(f"default {_value(default)}")
    text = inline(info.description or "")
    if name in config.kinds:
        table = config.kinds[name]
        listed = ", ".join(f"<code>{own}</code> ({inline(kind.about)})" for own, kind in table.own.items())
        text += f" Choose from: {listed}, or <code>module:Class</code>."
    return entry(flag, filter(None, facts), text)


def _type(kind: Any) -> str:
    choices = next(
        (part for part in (kind, *typing.get_args(kind)) if typing.get_origin(part) is typing.Literal), None
    )
    if choices is not None:
        return " | ".join(f"<code>{value}</code>" for value in typing.get_args(choices))
    if kind is bool:
        return ""
    if typing.get_origin(kind) is tuple:
        return f"{typing.get_args(kind)[0].__name__}, may be repeated"
    named = [part for part in typing.get_args(kind) if part is not type(None)] or [kind]
    return str(named[0].__name__)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    return f"<code>{html.escape(_number(value) if isinstance(value, int | float) else str(value), quote=False)}</code>"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else f"{value:g}"
