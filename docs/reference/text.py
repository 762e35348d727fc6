"""Docstrings as Markdown, with their equations.

An equation is an indented block. Its columns stay aligned: whatever stands behind two or more spaces, and the first sign
of equality of a line, begins a cell, and cells that begin at the same place begin at the same place on the page.
Subscripts (`L_co`, `h^L_A`, `Σ_{k ≠ i}`) are set as such.
"""

from __future__ import annotations

import html
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping

SOURCE = "https://github.com/qontext/qontext/blob/main"
_SCRIPTS = re.compile(
    r"(?<![\w`/.-])(?:"
    r"((?:[A-Za-zα-ωΑ-Ω][₀-₉]?|Σ|\))'*)((?:[_^](?:\{[^{}]*\}|[\w⁺-]+(?<!-)))+)"
    r"|(max|min|mean)(_(?:\{[^{}]*\}|\w\b)))"
)
_COMMAND = re.compile(r"'(qontext [^']*|[a-z-]+ --[^']*)'")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][\w-]*)")
_SCRIPT = re.compile(r"([_^])(?:\{([^{}]*)\}|([A-Za-z0-9α-ωΑ-Ω⁺-]+))")
_LINE = 85
"""Signs of an equation and its remark that stand side by side."""
_MATH = re.compile(r"[=Σ∈~∝]|uniform")


def markdown(docstring: str) -> str:
    """A docstring without indentation as Markdown; what it says of shapes in the code is left out."""
    blocks = re.split(r"\n\s*\n", docstring.strip("\n"))
    parts: list[str] = []
    for block in blocks:
        if block.startswith("Shapes:"):
            continue
        if re.match(r"    \S", block):
            parts.append(
                equation(block) if _MATH.search(block) else f"```text\n{textwrap.dedent(block)}\n```"
            )
        elif block.startswith("Args:"):
            parts.append(_arguments(block))
        elif re.match(r"[-|] |\d\. |\|", block) or block.startswith(">>>"):
            parts.append(f"```pycon\n{block}\n```" if block.startswith(">>>") else _listing(block))
        else:
            parts.append(prose(block))
    return "\n\n".join(parts)


def split(docstring: str) -> tuple[str, str]:
    """The first sentence and the rest."""
    head, _, rest = inspect.cleandoc(docstring).partition("\n\n")
    first, _, more = re.sub(r"\s+", " ", head).partition(". ")
    return first.rstrip(".:") + ".", "\n\n".join(filter(None, [more, rest]))


def _listing(block: str) -> str:
    """A list or a table, whose source is Markdown."""
    return re.sub(r"\n\s+", " ", block.replace("``", "`")) if not block.startswith("|") else block


def _arguments(block: str) -> str:
    """The parameters that a docstring lists."""
    listed = re.findall(r"^    (\w[\w, *]*): (.*(?:\n     .*)*)", block, re.M)
    return "\n".join(f"- `{names.replace(', ', '`, `')}`: {prose(text)}" for names, text in listed)


def prose(text: str) -> str:
    """A paragraph as Markdown: code in backticks as it is, subscripts of one letter set as such."""
    return "".join(f"`{part}`" if is_code else _escaped(part) for is_code, part in _parts(text))


def inline(text: str) -> str:
    """A paragraph as HTML, for blocks in which Markdown is not read."""
    parts = _parts(text)
    return "".join(f"<code>{_html(part)}</code>" if is_code else _scripts(part) for is_code, part in parts)


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """The text and its code: what stands in backticks, commands in quotation marks, and flags."""
    text = re.sub(r"\s+", " ", text.strip()).replace("``", "`")
    for number, part in enumerate(_COMMAND.sub(r"`\1`", text).split("`")):
        if number % 2:
            yield True, part
        else:
            yield from ((n % 2 == 1, piece) for n, piece in enumerate(_FLAG.split(part)))


def equation(block: str) -> str:
    """An indented block as a grid of cells, with the remarks on a line behind it, or below it if the line is long."""
    rows, remarks = _rows(textwrap.dedent(block).splitlines())
    starts = sorted({start for row in rows for start, _ in row})
    last = len(starts) + 1
    lines, below = [], False
    for number, (row, remark) in enumerate(zip(rows, remarks)):
        ends = [*(starts.index(start) + 1 for start, _ in row[1:]), last]
        cells = [(starts.index(start) + 1, end, text) for (start, text), end in zip(row, ends)]
        is_long = bool(remark) and sum(len(text) for *_, text in cells) + len(remark) > _LINE
        below = is_long if row else below
        if cells and (not remark or below):
            cells[-1] = (cells[-1][0], last + 1, cells[-1][2])
        lines += [_cell(2 * number + 1, *cell) for cell in cells]
        if remark:
            row_and_columns = (2 * number + 2, 1, last + 1) if below else (2 * number + 1, last, last + 1)
            lines.append(_cell(*row_and_columns, remark, "below" if below else "remark"))
    columns = f"repeat({last - 1}, max-content) minmax(0, 1fr)"
    return "\n".join(
        [f'<div class="equation" markdown="0" style="grid-template-columns: {columns}">', *lines, "</div>"]
    )


def _cell(row: int, begin: int, end: int, text: str, kind: str = "") -> str:
    kind = kind or ("long" if len(text) > _LINE else "")
    attribute = f' class="{kind}"' if kind else ""
    return f'<span{attribute} style="grid-area: {row} / {begin} / auto / {end}">{_scripts(text)}</span>'


def _rows(lines: list[str]) -> tuple[list[list[tuple[int, str]]], list[str]]:
    """The rows of a block: where each cell begins and its text; and the remarks behind them."""
    equals = Counter(line.find(" = ") for line in lines if re.match(r"\S[^=:]* = ", line))
    rows: list[list[tuple[int, str]]] = []
    remarks: list[str] = []
    for line in lines:
        if (continued := re.match(r"\s{6,}(\S.*)", line)) and rows:
            text = " ".join(continued[1].split())
            if remarks[-1] and not re.match(r"\S+ = ", text):
                remarks[-1] += f" {text}"
            elif remarks[-1]:
                rows.append([])
                remarks.append(text)
            else:
                rows[-1][-1] = (rows[-1][-1][0], f"{rows[-1][-1][1]} {text}")
            continue
        row, remark = _cells(line, equals)
        rows.append(row)
        remarks.append(remark)
    return rows, remarks


def _cells(line: str, equals: Mapping[int, int]) -> tuple[list[tuple[int, str]], str]:
    """The cells of a line, and its remark: what stands behind three or more spaces. A first word and two spaces are a cell,
    and the first sign of equality begins one if it does so in other lines, too."""
    label = re.match(r"(\S+)\s{2,}(?=[^\s=])", line)
    begin = label.end() if label else 0
    gap = re.search(r"(?<=\S)\s{3,}(?=[^\s=])", line[begin:])
    text, remark = (line[begin:][: gap.start()], line[begin:][gap.end() :]) if gap else (line[begin:], "")
    place = line.find(" = ")
    if label:
        cells = [(0, label[1]), (begin, text)]
    elif equals.get(place, 0) > 1:
        cells = [(0, text[:place].strip()), (place, text[place:].strip())]
    else:
        cells = [(0, text)]
    return [(start, re.sub(r"\s+", " ", part)) for start, part in cells], re.sub(r"\s+", " ", remark)


def _scripts(text: str) -> str:
    """HTML with subscripts and superscripts."""
    parts, end = [], 0
    for found in _SCRIPTS.finditer(text):
        parts += [_html(text[end : found.start()]), found[1] or found[3]]
        for sign, braced, plain in _SCRIPT.findall(found[2] or found[4]):
            tag = "sub" if sign == "_" else "sup"
            parts.append(f"<{tag}>{_html(braced or plain)}</{tag}>")
        end = found.end()
    return "".join([*parts, _html(text[end:])])


def _html(text: str) -> str:
    return html.escape(text, quote=False)


def _escaped(text: str) -> str:
    """Text in which Markdown finds nothing but what `_scripts` sets."""
    return re.sub(r"([*\[\]|{}]|(?<!\w)_|_(?!\w))", r"\\\1", _scripts(text))


def page(title: str, description: str, body: str, *, boost: float = 1.0) -> str:
    """A page with its metadata; `boost` is its weight in search."""
    search = f"search:\n  boost: {boost}\n" if boost != 1 else ""
    quoted = description.replace('"', "'")
    return f'---\ntitle: {title}\ndescription: "{quoted}"\n{search}---\n\n{body.rstrip()}\n'


def source_link(module: str) -> str:
    """A link to a module's source."""
    import importlib
    from pathlib import Path

    import qontext

    file = Path(str(importlib.import_module(module).__file__))
    path = file.relative_to(Path(str(qontext.__file__)).parents[2]).as_posix()
    return f"[`{path}`]({SOURCE}/{path})"
