"""Markdown: sections by headings; front matter becomes metadata; comments and link URLs are removed."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext.corpus.sources.formats import FileText, HeadingOrBlock, read_text, stem, under_title
from qontext.data.records import Block

_FRONT = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_TAG = re.compile(r"<!--.*?(-->|\Z)|</?[a-zA-Z][^>]*>", re.DOTALL)
_BREAK = re.compile(r"</?(?:br|p|li|div|tr|td)\b", re.IGNORECASE)
_UNSEEN = re.compile(r"<(script|style)\b.*?(</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)


def read(path: Path, encoding: str) -> Iterator[FileText]:
    text, metadata = without_front_matter(read_text(path, encoding))
    title, blocks = under_title(parts(text))
    own_title = metadata.pop("title", "")
    yield FileText(str(own_title) or title or stem(path), blocks, metadata)


def without_front_matter(text: str) -> tuple[str, dict[str, Any]]:
    """The text with empty lines instead of its YAML front matter, and the scalars and lists of the front matter."""
    import yaml

    front = _FRONT.match(text)
    try:
        entries = yaml.load(front[1], yaml.BaseLoader) if front else None
    except (yaml.YAMLError, RecursionError):
        entries = None
    if front is None or not isinstance(entries, dict):  # text between two rules
        return text, {}
    metadata = {
        str(name): [part for part in value if isinstance(part, str)]
        if isinstance(value, list)
        else value.strip()
        for name, value in entries.items()
        if value and isinstance(value, str | list)
    }
    return "\n" * front[0].count("\n") + text[front.end() :], metadata


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
