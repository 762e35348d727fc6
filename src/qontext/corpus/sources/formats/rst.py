"""reStructuredText: sections by underlined titles; comments, targets and directive options are removed. Read
line by line, so that extensions such as Sphinx's need no special handling.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from qontext.corpus.sources.formats import FileText, HeadingOrBlock, read_text, stem, under_title
from qontext.data.records import Block

_ADORNMENT = re.compile(r"([^\w\s])\1{2,}[ \t]*$")
_DIRECTIVE = re.compile(r"\.\.[ \t]+(?:\|[^|]+\|[ \t]+)?([\w:.+-]+)::[ \t]*(.*)$")
_COMMENT = re.compile(r"\.\.($|[ \t]+(?!\[))")
"""A comment or a target, after which a quotation may stand; a footnote is text."""
_OPTION = re.compile(r"[ \t]+:[\w-]+:(?:\s|$)")
_ROLE = re.compile(r":[\w:+.-]+:`([^`<]*?)(?:[ \t\n]*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)[ \t\n]*<[^`>]*>`__?")
_HIDDEN = frozenset((
    "toctree", "image", "raw", "index", "module", "currentmodule", "contents", "highlight", "meta",
    "sectionauthor", "moduleauthor", "include", "literalinclude", "default-domain", "tabularcolumns",
    "role", "bibliography",
))  # fmt: skip
"""Directives without text to read."""
_UNREAD_ARGUMENTS = ("figure", "only", "code", "code-block", "sourcecode", "math")
"""Directives whose argument is no text, but whose content is."""


def read(path: Path, encoding: str) -> Iterator[FileText]:
    lines = read_text(path, encoding).split("\n")
    title, blocks = under_title(_parts(lines))
    yield FileText(title or stem(path), blocks)


def _parts(lines: list[str]) -> Iterator[HeadingOrBlock]:
    """The paragraphs and titles; a title's level is the place of its style among those above."""
    styles: list[str] = []
    start = 0
    for begin, first, name, style in [*_titles(lines), (len(lines), 0, "", "")]:
        yield from _section(lines[start:begin], start)
        if name:
            styles = styles[: styles.index(style)] if style in styles else styles
            styles.append(style)
            yield len(styles), Block(name, line=begin + len(style))
        start = first


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


def _section(lines: list[str], offset: int) -> Iterator[HeadingOrBlock]:
    """The paragraphs of a section, without comments and without the names and options of directives."""
    paragraph: list[str] = []
    start, hidden, options = 0, -1, -1  # indentation of what is left out; and of options, if any may follow
    for n, line in enumerate([*lines, ""]):
        indent, stripped = len(line) - len(line.lstrip()), line.strip()
        if stripped and 0 <= hidden < indent:
            continue
        if stripped:
            hidden = -1
        directive = _DIRECTIVE.match(stripped)
        is_comment = not directive and bool(_COMMENT.match(stripped))
        is_option = options >= 0 and (bool(_OPTION.match(line)) or (0 < options < indent))
        if stripped and not (directive or is_comment or is_option):
            start = start if paragraph else n
            paragraph.append(line)
            options = -1
            continue
        if paragraph:
            yield Block(re.sub(r"::$", ":", _inline("\n".join(paragraph)).rstrip()), line=offset + start + 1)
            paragraph = []
        options = indent if is_option else 0 if directive else -1
        is_empty = not "".join(lines[n + 1 : n + 2]).strip()
        is_quotation = is_empty and (stripped == ".." or stripped.startswith((".. _", ".. |")))
        if (directive and directive[1] in _HIDDEN) or (is_comment and not is_quotation):
            hidden = indent
        if directive and directive[1] not in (*_HIDDEN, *_UNREAD_ARGUMENTS) and directive[2]:
            paragraph, start = [directive[2]], n
        elif directive:
            yield None


def _inline(text: str) -> str:
    """The text without roles and link URLs."""
    return _LINK.sub(r"\1", _ROLE.sub(lambda match: match[1] or match[0], text)).replace("``", "`")
