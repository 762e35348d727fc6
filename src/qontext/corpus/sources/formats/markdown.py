"""Markdown: sections by headings; front matter becomes metadata; comments and link URLs are removed."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from qontext.corpus.sources.formats.base import (
    LARGEST_MARKUP,
    FileText,
    HeadingOrBlock,
    read_text,
    stem,
    under_headings,
)
from qontext.data.records import Block

_FRONT = re.compile(r"\A---[ \t]*\n(.*?\n)??(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_ENTRY = re.compile(r"([\w-]+)[ \t]*:[ \t]*(.*)$")
_TAG = re.compile(r"<!--.*?(-->|\Z)|</?[a-zA-Z][^>]*>", re.DOTALL)
_BREAK = re.compile(r"</?(?:br|p|li|div|tr|td)\b", re.IGNORECASE)
_UNSEEN = re.compile(r"<(script|style)\b.*?(</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)


def read(path: Path, encoding: str) -> Iterator[FileText]:
    text = read_text(path, encoding, LARGEST_MARKUP)
    text, metadata = without_front_matter(text)
    title, blocks = parse(text)
    own_title = metadata.pop("title", None)
    yield FileText(
        own_title if isinstance(own_title, str) and own_title else title or stem(path),
        tuple(blocks),
        metadata,
    )


def without_front_matter(text: str) -> tuple[str, dict[str, Any]]:
    """The text with empty lines instead of its YAML front matter, and the scalars and lists of the front matter."""
    front = _FRONT.match(text)
    if front is None or (front[1] and not re.match(r"\s*(#|[\w-]+[ \t]*:)", front[1])):
        return text, {}
    metadata: dict[str, Any] = {}
    name = ""
    for line in (front[1] or "").split("\n"):
        entry = _ENTRY.match(line)
        item = re.match(r"[ \t]*-[ \t]+(.*)$", line)
        if entry:
            name, value = entry[1], entry[2].strip()
            listed = re.fullmatch(r"\[(.*)\]", value)
            parts = [_scalar(part) for part in listed[1].split(",") if part.strip()] if listed else None
            metadata[name] = parts if parts is not None else _scalar(value)
        elif (item and name and metadata[name] in ("", [])) or (
            item and isinstance(metadata.get(name), list)
        ):
            metadata[name] = [*(metadata[name] or []), _scalar(item[1])]
    return "\n" * front[0].count("\n") + text[front.end() :], {k: v for k, v in metadata.items() if v != ""}


def parse(text: str, above: tuple[str, ...] = (), line: int = 1) -> tuple[str, list[Block]]:
    """(title, blocks). The first heading is the title, and not part of the path, if it is the only one of its
    level. `line` is the number of the text's first line, or 0 if lines have no numbers.
    """
    tokens = _parser().parse(text)
    titles = [
        (int(t.tag[1]), _plain(tokens[n + 1])) for n, t in enumerate(tokens) if t.type == "heading_open"
    ]
    levels = [level for level, _ in titles]
    title = titles[0][1] if titles else ""
    only = bool(titles) and levels.count(levels[0]) == 1 and levels[0] == min(levels)
    blocks = under_headings(_parts(tokens, titles, line))
    return title, [replace(block, headings=(*above, *block.headings[only:])) for block in blocks]


def _parts(tokens: list[Any], titles: list[tuple[int, str]], line: int) -> Iterator[HeadingOrBlock]:
    """The blocks and headings of the text, of which `titles` has the levels and texts."""
    coming = iter(titles)
    cells: list[str] | None = None  # the current table row, and its lines
    row: list[int] | None = None
    lists, in_heading = 0, False
    for token in tokens:
        place = line + token.map[0] if line and token.map else None
        if token.type == "heading_open":
            in_heading = True
            level, name = next(coming)
            yield level, Block(name, line=place)
        elif token.type == "heading_close":
            in_heading = False
        elif token.type.endswith(("list_open", "list_close", "table_open", "table_close")):
            lists += token.nesting
        elif token.type == "tr_open":
            cells, row = [], token.map
        elif cells is not None and token.type == "inline":
            cells.append(_plain(token))
        elif not in_heading and token.type in ("fence", "code_block", "inline", "html_block", "tr_close"):
            code = token.type in ("fence", "code_block")
            content = token.content.rstrip("\n") if code else _plain(token)
            if token.type == "tr_close":
                content, cells = " | ".join(cells or ()), None
                place = line + row[0] if line and row else None
            elif token.type == "fence" and place:
                place += 1
            if content.strip():
                yield Block(content, line=place, tight=lists > 0, code=code)


@functools.cache
def _parser() -> Any:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table")


def _plain(token: Any) -> str:
    """The text of an inline token or of HTML, without markup."""
    if token.type == "html_block":
        return _TAG.sub(" ", _UNSEEN.sub(" ", token.content)).strip()
    parts = []
    for child in token.children or ():
        if child.type in ("text", "code_inline"):
            parts.append(child.content)
        elif child.type in ("softbreak", "hardbreak"):
            parts.append("\n")
        elif child.type == "html_inline" and _BREAK.match(child.content):
            parts.append(" ")  # a line break would change the number of lines
    return "".join(parts).strip()


def _scalar(value: str) -> str:
    """A YAML scalar as text, without its quotes or comment."""
    value = value.strip()
    if value[:1] in ("'", '"') and value.endswith(value[:1]) and len(value) > 1:
        return value[1:-1]
    return re.sub(r"[ \t]+#.*$", "", value)
