"""A report as a self-contained HTML page, and as Markdown with figure files."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from qontext.evaluation import plots
from qontext.evaluation.contents import Block
from qontext.evaluation.tables import Table, to_markdown


@cache
def _templates() -> Any:
    """The templates beside this module. They escape all data."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("qontext.evaluation", "."), autoescape=True, undefined=StrictUndefined
    )


def to_page(title: str, subtitle: str, blocks: Sequence[Block]) -> str:
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


def to_markdown_page(title: str, subtitle: str, blocks: Sequence[Block]) -> str:
    """The same in Markdown; figures are the PNG files beside it."""
    lines = [f"# {_h(title)}", "", _h(subtitle), ""]
    for block in blocks:
        lines += [f"## {_h(block.heading)}", ""]
        for number, text in enumerate(block.text):
            lines += [f"**{_h(text)}**" if block.is_lead and number == 0 else _h(text), ""]
        lines += [to_markdown(table) for table in block.tables]
        for plot in block.plots:
            lines += [f"![{_h(plot.caption)}](plots/{plot.name}.png)", "", f"*{_h(plot.caption)}*", ""]
        for summary, text in block.details:
            # Four spaces make code of any text, whatever fences it holds.
            lines += [
                "",
                f"<details><summary>{_h(summary)}</summary>",
                "",
                *(f"    {x}" for x in text.splitlines()),
            ]
            lines += ["", "</details>"]
        lines.append("")
    return "\n".join(lines)


def _h(text: str) -> str:
    return html.escape(text, quote=True)
