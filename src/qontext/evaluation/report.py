"""`qontext report`: experiments and results as a self-contained HTML page, as Markdown, tables and figures."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from qontext import __version__
from qontext.evaluation.tables import Table, to_csv, to_latex, to_markdown
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError, choose
from qontext.frame.stages import Stage

if TYPE_CHECKING:
    from qontext.evaluation.contents import ReportBlock

_PREAMBLE = "% \\usepackage{booktabs,graphicx}; names in other scripts than Latin and Greek need LuaLaTeX or XeLaTeX\n"


class ReportConfig(StageConfig):
    runs: Annotated[tuple[str, ...], Input(positional=True)]
    """Output directories of stages, or folders with such directories (such as the output of `qontext run`).
    Systems scored on the same judgments are in one table; the first one is the baseline of the plots.
    Directories that differ only in a seed (…-seed1, …-seed2, or --seed=1 as named by `sweep`) are one
    system."""

    label: tuple[str, ...] = ()
    """Display name of a system, as NAME=LABEL; may be repeated. These systems come first, in this order, so
    the first one is the baseline of all differences."""

    opening: tuple[str, ...] = ()
    """Introductory text of the report; the first paragraph is shown in bold."""

    recommended: str | None = None
    """Display name of the recommended system. It is marked in the tables; p values and examples are of it instead of the
    best system."""

    title: str | None = None
    """Title of the report. Default: the names of the directories."""

    data: Annotated[str | None, Input()] = None
    """A folder in BEIR's layout with the texts: adds the queries with the largest gains and losses, with the
    first results of the baseline and the best system."""

    price_per_hour: Annotated[float | None, Field(ge=0)] = None
    """Price per machine hour, to show the cost."""


def run(settings: ReportConfig, work: Workdir) -> dict[str, Any]:
    from qontext.data.collection import load_collection
    from qontext.evaluation.contents import DIFFERENCE_COLUMNS, RESULT_COLUMNS, contents
    from qontext.evaluation.gather import gather
    from qontext.evaluation.plots import png_bytes

    if settings.data is not None:
        load_collection(settings.data)  # even where there is nothing to show examples of
    labels = dict(_label(text) for text in settings.label)
    facts = gather(settings.runs, labels)
    shown = dict.fromkeys(system.name for section in facts.sections for system in section.systems)
    if settings.recommended is not None and shown:
        choose(settings.recommended, shown, "system in --recommended")
    report = contents(
        facts,
        data=settings.data,
        price=settings.price_per_hour,
        opening=settings.opening,
        recommended=settings.recommended,
    )
    title = settings.title or facts.title
    finished = max((stage.meta["made"]["finished"][:10] for _, stage in facts.stages), default="")
    subtitle = f"qontext {__version__}" + (f" · finished {finished}" if finished else "")
    texts = {
        "report.html": to_page(title, subtitle, report.blocks),
        "report.md": to_markdown_page(title, subtitle, report.blocks),
        "results.csv": to_csv(RESULT_COLUMNS, report.results),
        "differences.csv": to_csv(DIFFERENCE_COLUMNS, report.differences),
        "tables.tex": "\n".join([_PREAMBLE, *(to_latex(t) for block in report.blocks for t in block.tables)]),
    }
    for name, text in texts.items():
        with work.write(name) as path:
            path.write_text(text, encoding="utf-8")
    plots = [plot for block in report.blocks for plot in block.plots]
    for plot in plots:
        with work.write(f"plots/{plot.name}.svg") as path:
            path.write_bytes(plot.svg)
        with work.write(f"plots/{plot.name}.png") as path:
            path.write_bytes(png_bytes(plot.figure))
    return {
        "page": str(work.path / "report.html"),
        "judgments": len(facts.sections),
        "systems": sum(len(section.systems) for section in facts.sections),
        "steps": len(facts.stages),
        "plots": len(plots),
    }


def _label(text: str) -> tuple[str, str]:
    name, sign, label = text.rpartition("=")  # names may contain the sign, as those of a sweep
    if not sign or not name or not label:
        raise QontextError(f"cannot read the label {text!r}", remedy="Write NAME=LABEL.")
    return name, label


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

    from qontext.evaluation import plots

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


def to_markdown_page(title: str, subtitle: str, blocks: Sequence[ReportBlock]) -> str:
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


STAGE = Stage(
    verb="report",
    config=ReportConfig,
    run=run,
    examples="""
        qontext report runs/recipe --out report
        qontext report bm25-scores dense-scores --data data --out report
    """,
)
