"""The public names of `qontext`: signatures, docstrings, and what their objects have."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import qontext
from qontext.frame import stages

from .text import markdown, page, source_link


def pages() -> dict[str, str]:
    parts = [
        "# Python API",
        "The public names of `qontext`; each is imported on first use. Everything else may change without notice.",
    ]
    parts += [_name(name) for name in qontext.__all__]
    parts += ["## qontext.api", _commands()]
    return {
        "reference/python.md": page(
            "Python API", "Classes and functions of qontext.", "\n\n".join(parts), boost=0.8
        )
    }


def _name(name: str) -> str:
    value = getattr(qontext, name)
    parts = [f"## {name}", _code(_signature(name, value)), markdown(inspect.getdoc(value) or "")]
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__mro__[1:] if base.__name__ in qontext.__all__]
        parts += [f"Has all that [{base}](#{base.lower()}) has." for base in bases]
        parts += [_fields(value), *_members(value, bases)]
    parts.append(f"Source: {source_link(value.__module__)}")
    return "\n\n".join(filter(None, parts))


def _fields(kind: type) -> str:
    """The fields of a record, with the docstrings that stand under them."""
    names = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "_fields", ())
    if not names:
        return ""
    docs, types = _docs_of_fields(kind), inspect.get_annotations(kind)
    rows = [
        f"- `{name}`: `{types.get(name, '')}`{'. ' + docs[name] if name in docs else ''}" for name in names
    ]
    return "\n".join(rows)


def _docs_of_fields(kind: type) -> dict[str, str]:
    source = inspect.getsource(kind)
    found = re.findall(r'^    (\w+): [^\n]*\n    """(.*?)"""', source, re.M | re.S)
    return {name: re.sub(r"\s+", " ", text).strip() for name, text in found}


def _members(kind: type, bases: list[str]) -> Iterator[str]:
    """The public methods and properties with a docstring, apart from those of public base classes."""
    inherited = {name for base in bases for name in dir(getattr(qontext, base))}
    for name, value in inspect.getmembers_static(kind):
        if (name.startswith("_") and name != "__call__") or (name in inherited and name not in vars(kind)):
            continue
        is_property = isinstance(value, property) or type(value).__name__ == "cached_property"
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        function = getattr(value, "fget", None) or getattr(value, "func", None) or function
        if not inspect.isfunction(function) or not function.__module__.startswith("qontext."):
            continue
        text = inspect.getdoc(function)
        if not text:
            continue
        is_of_class = isinstance(value, classmethod | staticmethod)
        owner = kind.__name__ if is_of_class else kind.__name__.lower()
        shown = owner if name == "__call__" else f"{owner}.{name}"
        title = f"{kind.__name__}.{name}".replace("__call__", r"\_\_call\_\_")
        anchor = f"{kind.__name__}-{name.strip('_')}".lower()
        head = shown if is_property else _signature(shown, function, is_bound=True)
        yield f"### {title} {{: #{anchor} }}\n\n{_code(head)}\n\n{markdown(text)}"


class _Raw(str):
    """An annotation, which a signature prints without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(name: str, value: Any, *, is_bound: bool = False) -> str:
    signature = inspect.signature(value)
    parameters = [p.replace(annotation=_raw(p.annotation)) for p in signature.parameters.values()]
    if is_bound and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    returned = inspect.Signature.empty if inspect.isclass(value) else _raw(signature.return_annotation)
    signature = signature.replace(parameters=parameters, return_annotation=returned)
    text = f"{name}{signature}"
    if len(text) <= 90:
        return text
    inner = str(signature.replace(return_annotation=inspect.Signature.empty))[1:-1]
    end = text[len(name) + len(inner) + 2 :]
    return "\n".join([f"{name}(", *(f"    {part}," for part in _split(inner)), f"){end}"])


def _raw(annotation: Any) -> Any:
    return _Raw(annotation) if isinstance(annotation, str) else annotation


def _split(parameters: str) -> Iterator[str]:
    """The parameters, split at the commas outside of brackets."""
    depth, start = 0, 0
    for place, sign in enumerate(parameters):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and not depth:
            yield parameters[start:place].strip()
            start = place + 1
    yield parameters[start:].strip()


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _commands() -> str:
    listed = ", ".join(f"[`{verb.replace('-', '_')}`](commands/{verb}.md)" for verb in stages.VERBS)
    return (
        "Every command as a typed function: settings are keywords, positional arguments come first, and `out=` is the "
        "output directory. A command that writes a directory returns an `Artifact` with its `path`, `digest` and "
        f"`summary`; a report returns its result. {listed}."
    )
