"""A self-contained HTML page: blocks of text, tables and figures, without scripts and requests."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from qontext.evaluation import plots
from qontext.evaluation.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
