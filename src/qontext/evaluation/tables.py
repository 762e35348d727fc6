"""A table as Markdown, LaTeX (booktabs) or CSV, with all data escaped."""

from __future__ import annotations

import csv
import html
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    """A cell: text, a superscript, whether it is the best of its column, a longer text."""

    text: str
    mark: str = ""
    is_best: bool = False
    is_text: bool = False
    title: str = ""


@dataclass(frozen=True)
class Row:
    """A row, or with a `heading` instead of cells, the heading of the following group of rows."""

    cells: tuple[Cell, ...] = ()
    heading: str = ""
    is_ours: bool = False
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


def to_csv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    # Text that a spreadsheet would interpret as a formula is quoted.
    writer.writerows(
        [f"'{v}" if isinstance(v, str) and v[:1] in "=+-@\t" and v else v for v in row] for row in rows
    )
    return out.getvalue()


def _m(text: str) -> str:
    """Escape the text for Markdown and HTML."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", html.escape(flat, quote=False))


def _command(sign: str) -> str:
    """The command for a Greek letter, which is its name."""
    name = unicodedata.name(sign).rpartition(" ")[2].replace("LAMDA", "LAMBDA")
    return name.lower() if sign.islower() else name.capitalize()


_FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
_LONG = 40  # letters from which a column is as wide as a paragraph and breaks its lines
_LATEX = {sign: "\\" + sign for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "…": r"\ldots{}",
    "<": "$<$", ">": "$>$", "–": "--", "−": "$-$", "±": r"$\pm$", "→": r"$\to$", "×": r"$\times$",
    "≤": r"$\le$", "≥": r"$\ge$", "≈": r"$\approx$", "✓": r"$\surd$", "✗": r"$\times$",
    "„": ",,", "«": r"$\ll$", "»": r"$\gg$", "[": "{[}", "]": "{]}", "µ": r"$\mu$",
}  # fmt: skip
"""Escape the text for LaTeX. A row must not begin with a bare bracket."""
_GREEK = "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ"
_LATEX |= {sign: rf"$\{_command(sign)}$" for sign in _GREEK}


def _latex_column(cells: Sequence[Cell], i: int) -> str:
    if not cells:
        return "l"
    if i and not cells[0].is_text:
        return "r"
    return r"p{7cm}" if max(len(cell.text) for cell in cells) > _LONG and i else "l"


def _l(text: str) -> str:
    flat = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(_LATEX.get(sign, sign) for sign in flat)
