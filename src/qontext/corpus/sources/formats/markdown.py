"""Markdown: sections by headings; front matter becomes metadata; comments and link URLs are removed."""

from __future__ import annotations

import functools
import html
import re
import textwrap
from collections.abc import Iterable, Iterator
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
_KEY = re.compile(r"""(?!-\s)["']?[\w.@$/-]+(?: [\w.@$/-]+){0,2}["']?[ \t]*:(?!//)""")
_ANY_KEY = re.compile(r"[^\s?:#-][^:]{0,60}:(?:\s|\Z)")
"""A line that is rather a key than prose, between others."""
_TAG = re.compile(r"<!--.*?(-->|\Z)|</?[a-zA-Z][^>]*>", re.DOTALL)
_BREAK = re.compile(r"</?(?:br|p|li|div|tr|td)\b", re.IGNORECASE)
_UNSEEN = re.compile(r"<(script|style)\b.*?(</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)


def read(path: Path, encoding: str) -> Iterator[FileText]:
    text = read_text(path, encoding, LARGEST_MARKUP)
    text, metadata = without_front_matter(text)
    title, blocks = under_title(parts(text))
    own_title = metadata.pop("title", None)
    yield FileText(
        own_title if isinstance(own_title, str) and own_title else title or stem(path),
        tuple(blocks),
        metadata,
    )


def without_front_matter(text: str) -> tuple[str, dict[str, Any]]:
    """The text with empty lines instead of its YAML front matter, and the scalars and lists of the front matter."""
    front = _FRONT.match(text)
    commented = (front[1] or "").split("\n")[:-1] if front else []
    lines = [line for line in commented if not line.startswith("#")]
    if not all(line.startswith("    ") for line in lines):  # which is code
        lines = textwrap.dedent("\n".join(lines)).split("\n")
    is_comment = len(commented) > 1 or any(":" in line for line in commented)  # else it is rather a title
    is_empty = not any(map(str.strip, commented)) or (
        is_comment and all(x.startswith("#") for x in commented)
    )
    if front is None or not (is_empty or _is_yaml(lines)):
        return text, {}
    entries: list[tuple[str, str, list[str]]] = []
    for line in lines:
        if _KEY.match(line) or _ANY_KEY.match(line):
            entry = _ENTRY.match(line)
            entries.append((entry[1], entry[2].strip(), []) if entry else ("", "", []))
        elif entries:
            entries[-1][2].append(line.strip())
    metadata = {n: value for n, first, rest in entries if n and (value := _value(first, rest)) != ""}
    return "\n" * front[0].count("\n") + text[front.end() :], metadata


def _is_yaml(lines: list[str]) -> bool:
    """True if the first line is a key, and no line after an empty one is prose."""
    own = [
        (number, line)
        for number, line in enumerate(lines)
        if line.strip() and not line.startswith((" ", "\t", "#", "-", "?", ":", "]", "}", "{%"))
    ]
    if not own or not _KEY.match(own[0][1]):
        return False
    return all(_ANY_KEY.match(line) for number, line in own[1:] if not lines[number - 1].strip())


def _value(first: str, rest: list[str]) -> str | list[str]:
    """The value of a key: a scalar, maybe of several lines, or a list; empty for other structures."""
    if re.match(r"[>|][-+\d]*(?:\s+#|$)", first):
        return (" " if first[0] == ">" else "\n").join(line for line in rest if line)
    lines = [line for line in rest if line and not line.startswith("#")]
    if not first:
        return [_scalar(item[1]) for line in lines if (item := re.match(r"-[ \t]+(.*)$", line))] or ""
    value = " ".join([first, *lines])
    listed = re.match(r"\[(.*)\]\s*(?:#|$)", value)
    return [_scalar(part) for part in listed[1].split(",") if part.strip()] if listed else _scalar(value)


def under_title(parts: Iterable[HeadingOrBlock]) -> tuple[str, list[Block]]:
    """(title, blocks). The first heading is the title, and not part of the path, if it is the only one of its level."""
    parts = list(parts)
    titles = [(part[0], part[1].text) for part in parts if isinstance(part, tuple)]
    levels = [level for level, _ in titles]
    title = titles[0][1] if titles else ""
    only = bool(title) and levels.count(levels[0]) == 1 and levels[0] == min(levels)
    return title, [replace(block, headings=block.headings[only:]) for block in under_headings(parts)]


def parts(text: str) -> Iterator[HeadingOrBlock]:
    """The blocks and headings of the text."""
    tokens = _parser().parse(text)
    cells: list[str] | None = None  # the current table row, and its lines
    row: list[int] | None = None
    lists, in_heading = 0, False
    for number, token in enumerate(tokens):
        place = token.map[0] + 1 if token.map else None
        if token.type == "heading_open":
            in_heading = True
            yield int(token.tag[1]), Block(_plain(tokens[number + 1]), line=place)
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
                place = row[0] + 1 if row else None
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
        return html.unescape(_TAG.sub(" ", _UNSEEN.sub(" ", token.content))).strip()
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
