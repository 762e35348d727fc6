"""The results of an outside system, in whatever layout it prints them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_LISTS = (
    "hits",
    "results",
    "data",
    "documents",
    "matches",
    "chunks",
    "items",
    "passages",
    "result",
    "points",
)
_INNER = ("_source", "document", "metadata", "attributes", "payload", "fields")
_NAMES = (
    *("passage", "passage_id", "chunk_id", "id", "_id", "document", "document_id", "doc_id", "doc"),
    *("file_id", "filename", "file", "path", "source", "uri", "url", "title"),
)
_TEXTS = ("text", "content", "page_content", "passage_text", "chunk", "body", "snippet", "excerpt", "passage")


class Result(NamedTuple):
    """A result: the names by which it may be known, best first, and its text, if any."""

    names: tuple[str, ...]
    text: str = ""


def parse(text: str) -> list[Result]:
    """The results in the output of a program: JSON, lines of JSON, texts with empty lines between them, or lines."""
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, str | list | dict | None):  # a lone number is an id, as it is written
            return list(results_of(value))
    lines = [line for line in text.splitlines() if line.strip()]
    with contextlib.suppress(ValueError, RecursionError):
        if lines and all(line.lstrip().startswith("{") for line in lines):
            return list(results_of([json.loads(line) for line in lines]))
    blocks = [block for block in re.split(r"\n[ \t]*\n", text) if block.strip()]
    return [_of_text(block) for block in (blocks if len(blocks) > 1 else lines)]


def results_of(value: Any) -> Iterator[Result]:
    """The results in JSON of any layout: the first list with a usual name, items with usual names of ids and texts."""
    if isinstance(value, str):
        yield _of_text(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield Result((str(value),))
    elif isinstance(value, list):
        for item in value:
            yield from results_of(item)
    elif isinstance(value, dict):
        inner = next((value[name] for name in _LISTS if isinstance(value.get(name), list | dict)), None)
        if inner is not None:
            yield from results_of(inner)
        elif (result := _of_item(value)).names or result.text:
            yield result


def _of_item(item: Mapping[str, Any]) -> Result:
    """A result with its own names first, then those of what is in it."""
    layers = [item, *(item[name] for name in _INNER if isinstance(item.get(name), dict))]
    names, text = [], ""
    for layer in layers:
        for key in _NAMES:
            value = layer.get(key)
            # As a number, `passage` is a position in a document.
            is_number = isinstance(value, int) and not isinstance(value, bool) and key != "passage"
            if is_number or (isinstance(value, str) and value.strip()):
                names.append(str(value))
        text = text or next((own for key in _TEXTS if (own := _text(layer.get(key)))), "")
    return Result(tuple(dict.fromkeys(names)), text)


def _text(value: Any) -> str:
    """A text, or the parts of one."""
    if isinstance(value, list):
        return "\n".join(filter(None, map(_text, value)))
    if isinstance(value, dict):
        return _text(value.get("text"))
    return value.strip() if isinstance(value, str) else ""


def _of_text(text: str) -> Result:
    """A line may be an id, a path, or begin with one, as those of grep do."""
    text = text.strip()
    first = text.partition("\n")[0].strip()
    names = (
        first,
        first.partition("\t")[0].strip(),
        re.split(r":\d+:|:\s", first)[0].strip(),
        first.partition(":")[0],
    )
    return Result(tuple(dict.fromkeys(filter(None, names))), text)
