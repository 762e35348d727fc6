"""reStructuredText: sections by underlined titles; comments, targets and directive options are removed. Read
line by line, so that extensions such as Sphinx's need no special handling.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from qontext.corpus.sources.formats.base import FileText, HeadingOrBlock, read_text, stem, under_headings
from qontext.data.records import Block

_ADORNMENT = re.compile(r"([^\w\s])\1{2,}[ \t]*$")
_COMMENT = re.compile(r"\.\.($|[ \t]+(?!\[|\w[\w:.+-]*::|\|))")
_DIRECTIVE = re.compile(r"\.\.[ \t]+(?:\|[^|]+\|[ \t]+)?([\w:.+-]+)::[ \t]*(.*)$")
_TARGET = re.compile(r"\.\.[ \t]+(_|__ |\|)")
_OPTION = re.compile(r"[ \t]+:[\w-]+:(?:\s|$)")
_ROLE = re.compile(r":[\w:+.-]+:`([^`<]*?)(?:[ \t\n]*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)[ \t\n]*<[^`>]*>`__?")
_HIDDEN = frozenset((
    "toctree", "image", "raw", "index", "module", "currentmodule", "contents", "highlight", "meta",
    "sectionauthor", "moduleauthor", "include", "literalinclude", "default-domain", "tabularcolumns",
    "role", "bibliography",
))  # fmt: skip
"""Directives without text to read."""
_CONTENT_ALONE = ("figure", "only")
"""Directives whose argument is no text, but whose content is."""


def read(path: Path, encoding: str) -> Iterator[FileText]:
    lines = read_text(path, encoding).split("\n")
    title, blocks = parse(lines)
    yield FileText(title or stem(path), tuple(blocks))


def parse(lines: list[str]) -> tuple[str, list[Block]]:
    """(title, blocks). The first title is the document's if no other section has its level."""
    cuts = list(_titles(lines))
    only = [style for *_, style in cuts].count(cuts[0][3]) == 1 if cuts else False
    title = cuts[0][2] if cuts else ""

    def headings(path: tuple[str, ...]) -> tuple[str, ...]:
        return path[1:] if only or path == (title,) else path

    return title, [replace(b, headings=headings(b.headings)) for b in under_headings(_parts(lines, cuts))]


def _parts(lines: list[str], cuts: list[tuple[int, int, str, str]]) -> Iterator[HeadingOrBlock]:
    """The paragraphs and titles, of which `cuts` has the places and styles."""
    levels: list[str] = []
    bounds = [(0, 0, "", ""), *cuts]
    for (begin, first, name, style), following in zip(bounds, [*bounds[1:], (len(lines), 0, "", "")]):
        if name:
            levels = levels[: levels.index(style)] if style in levels else levels
            levels.append(style)
            yield len(levels), Block(name, line=begin + len(style))
        yield from _section(lines, first, following[0])


def _titles(lines: list[str]) -> Iterator[tuple[int, int, str, str]]:
    """(first line, line after, title, style) of each title, with or without an overline."""
    for n in range(len(lines) - 1):
        text, under = lines[n], lines[n + 1]
        if not text.strip() or not _ADORNMENT.match(under) or _ADORNMENT.match(text):
            continue
        over = n > 0 and bool(_ADORNMENT.match(lines[n - 1])) and lines[n - 1][:1] == under[:1]
        is_title = text[:1].strip() and (n == 0 or not lines[n - 1].strip())
        # Too short underlines are accepted from four characters on.
        if (over or is_title) and len(under.rstrip()) >= min(4, len(text.strip())):
            yield n - over, n + 2, _inline(text.strip()), under[0] * (1 + over)


def _section(lines: list[str], first: int, end: int) -> Iterator[HeadingOrBlock]:
    """The paragraphs of a section, without directives' names and options."""
    paragraph: list[str] = []
    start, hidden = first, -1
    option = -1.0  # the indentation of options, if any may follow; of any, after the directive
    for n in range(first, end + 1):
        line = lines[n] if n < end else ""
        indent = len(line) - len(line.lstrip())
        stripped = line.strip()
        if stripped and hidden >= 0 and indent > hidden:
            continue
        if stripped:
            hidden = -1
        directive = _DIRECTIVE.match(stripped)
        is_marker = stripped.startswith("..") and (
            directive or _COMMENT.match(stripped) or _TARGET.match(stripped)
        )
        is_option = option >= 0 and (bool(_OPTION.match(line)) or indent > option)
        if stripped and not is_marker and not is_option:
            option = -1
            start = n if not paragraph else start
            paragraph.append(line)
            continue
        if paragraph:
            text = _inline("\n".join(paragraph))
            yield Block(re.sub(r"::$", ":", text.rstrip()), line=start + 1)
            paragraph = []
        option = math.inf if directive else min(option, indent) if is_option and stripped else -1
        if is_marker:
            if not directive or directive[1] in _HIDDEN:
                # What follows an empty comment or a target after an empty line is a quotation.
                is_alone = n + 1 < end and not lines[n + 1].strip()
                if not (is_alone and (stripped == ".." or _TARGET.match(stripped))):
                    hidden = indent
                if directive:
                    yield None
            elif directive[1] in _CONTENT_ALONE:
                yield None
            elif directive[2] and not directive[1].startswith(("code", "sourcecode", "math")):
                paragraph, start = [directive[2]], n


def _inline(text: str) -> str:
    """The text without roles and link URLs."""
    return _LINK.sub(r"\1", _ROLE.sub(lambda match: match[1] or match[0], text)).replace("``", "`")
