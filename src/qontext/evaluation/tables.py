"""A table as Markdown, LaTeX (booktabs) or HTML, and a self-contained page of blocks of text, tables and figures, without
scripts and requests. All data are escaped."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from qontext.evaluation import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Cell:
    """A cell: text, a superscript, whether it is the best of its column, and whether it is text rather than a number."""

    text: str
    mark: str = ""
    is_best: bool = False
    is_text: bool = False


@dataclass(frozen=True)
class Row:
    """A row, or with a `heading` instead of cells, the heading of the following group of rows."""

    cells: tuple[Cell, ...] = ()
    heading: str = ""
    is_new: bool = False  # a line above it, to separate groups of rows


@dataclass
class Table:
    """Columns, rows, and notes below them."""

    columns: Sequence[str]
    rows: list[Row] = field(default_factory=list)
    caption: str = ""
    notes: list[str] = field(default_factory=list)
    is_prose: bool = False  # mostly text: on a narrow screen its cells are stacked


def to_markdown(table: Table) -> str:
    rows = [row for row in table.rows if row.cells]
    texts = [i == 0 or not rows or rows[0].cells[i].is_text for i in range(len(table.columns))]
    lines = [f"**{_m(table.caption)}**", ""] if table.caption else []
    lines.append("| " + " | ".join(_m(name) for name in table.columns) + " |")
    lines.append("|" + "|".join(" --- " if is_text else " ---: " for is_text in texts) + "|")
    for row in table.rows:
        if row.heading:
            lines.append(f"| *{_m(row.heading)}* |" + " |" * (len(table.columns) - 1))
            continue
        cells = (
            ("**" + _m(c.text) + "**" if c.is_best else _m(c.text))
            + (f"<sup>{_m(c.mark)}</sup>" if c.mark else "")
            for c in row.cells
        )
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"{_m(note)}  " for note in table.notes)] if table.notes else []
    return "\n".join([*lines, ""])


def to_latex(table: Table) -> str:
    """A LaTeX table: needs booktabs, and graphicx to shrink wide tables."""
    rows = [row for row in table.rows if row.cells]
    kinds = "".join(_latex_column([row.cells[i] for row in rows], i) for i in range(len(table.columns)))
    lines = [r"\begin{table}[t]", r"\centering", _FITTED, rf"\begin{{tabular}}{{{kinds}}}", r"\toprule"]
    lines += [" & ".join(_l(name) for name in table.columns) + r" \\", r"\midrule"]
    for i, row in enumerate(table.rows):
        if row.heading:
            rule = [r"\midrule"] if i else []
            lines += [*rule, rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\textit{{{_l(row.heading)}}}}} \\"]
            continue
        cells = (
            (rf"\textbf{{{_l(c.text)}}}" if c.is_best else _l(c.text))
            + (rf"$^{{\mathrm{{{_l(c.mark)}}}}}$" if c.mark else "")
            for c in row.cells
        )
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}"]
    caption = (
        " ".join([table.caption.rstrip(".") + ".", *table.notes]) if table.caption else " ".join(table.notes)
    )
    return "\n".join([*lines, rf"\caption{{{_l(caption)}}}", r"\end{table}", ""])


def _m(text: str) -> str:
    """Escape the text for Markdown and HTML."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", html.escape(flat, quote=False))


_FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
_LONG = 40  # letters from which a column is as wide as a paragraph and breaks its lines
_LATEX = {sign: "\\" + sign for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "…": r"\ldots{}",
    "<": "$<$", ">": "$>$", "–": "--", "−": "$-$", "±": r"$\pm$", "→": r"$\to$", "×": r"$\times$",
    "≤": r"$\le$", "≥": r"$\ge$", "≈": r"$\approx$", "✓": r"$\surd$", "✗": r"$\times$",
    "„": ",,", "«": r"$\ll$", "»": r"$\gg$", "[": "{[}", "]": "{]}", "µ": r"$\mu$",
}  # fmt: skip
"""Escape the text for LaTeX. A row must not begin with a bare bracket."""


def _latex_column(cells: Sequence[Cell], i: int) -> str:
    if not cells:
        return "l"
    if i and not cells[0].is_text:
        return "r"
    return r"p{7cm}" if max(len(cell.text) for cell in cells) > _LONG and i else "l"


def _l(text: str) -> str:
    flat = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(_LATEX.get(sign, sign) for sign in flat)


@dataclass(frozen=True, eq=False)
class Plot:
    """A figure with its name and caption."""

    name: str
    figure: Figure
    caption: str

    @cached_property
    def svg(self) -> bytes:
        return plots.svg_bytes(self.figure, self.name)


@dataclass
class ReportBlock:
    """A piece of the report under one heading."""

    heading: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    is_lead: bool = False  # its text is main content, not a note


@cache
def _templates() -> Any:
    """The templates beside this module. They escape all data."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("qontext.evaluation", "."), autoescape=True, undefined=StrictUndefined
    )


def to_page(title: str, subtitle: str, blocks: Sequence[ReportBlock]) -> str:
    """The complete page, without scripts and requests."""
    from markupsafe import Markup

    page: str = (
        _templates()
        .get_template("report.html")
        .render(
            title=title,
            subtitle=subtitle,
            blocks=blocks,
            css=Markup(files("qontext.evaluation").joinpath("page.css").read_text(encoding="utf-8")),
            show_table=lambda table: Markup(to_html(table)),
            inline_svg=lambda svg, caption: Markup(plots.inline_svg(svg, html.escape(caption))),
        )
    )
    return page


def to_html(table: Table) -> str:
    """The table as an HTML figure."""
    first = next((row for row in table.rows if row.cells), None)
    text: str = _templates().get_template("table.html").render(table=table, first=first)
    return text
