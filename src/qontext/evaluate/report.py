"""`qontext report`: what was run and what came out, as a page, tables to paste and figures to show."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from qontext import __version__
from qontext.artifacts import Workdir
from qontext.config import Input, StageConfig
from qontext.evaluate.contents import DIFFERENCE_COLUMNS, RESULT_COLUMNS, contents
from qontext.evaluate.gather import gather
from qontext.evaluate.page import to_markdown_page, to_page
from qontext.evaluate.plots import png_bytes
from qontext.evaluate.tables import to_csv, to_latex
from qontext.stages import Stage

_PREAMBLE = "% \\usepackage{booktabs,graphicx}; names in other scripts than Latin and Greek need LuaLaTeX or XeLaTeX\n"


class ReportConfig(StageConfig):
    runs: Annotated[tuple[str, ...], Input(positional=True)]
    """Directories that stages wrote, or folders with such directories (as `qontext run` leaves them). Systems
    that were scored on the same judgements stand in one table; the first is the baseline of the plots.
    Directories that differ only in a seed (…-seed1, …-seed2) are one system."""

    title: str | None = None
    """The title. Default: the names of the directories."""

    data: Annotated[str | None, Input()] = None
    """A folder in BEIR's layout with the texts: adds the queries that gain and lose most, with what the
    baseline and the best system put first."""

    split: str = "test"
    """Which judgements of a folder in BEIR's layout the examples use."""

    price_per_hour: Annotated[float | None, Field(ge=0)] = None
    """What an hour of the machine costs, to show the cost beside the time."""


def run(settings: ReportConfig, work: Workdir) -> dict[str, Any]:
    facts = gather(settings.runs)
    report = contents(facts, data=settings.data, split=settings.split, price=settings.price_per_hour)
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
    drawn = [plot for block in report.blocks for plot in block.plots]
    for plot in drawn:
        with work.write(f"plots/{plot.name}.svg") as path:
            path.write_bytes(plot.svg)
        with work.write(f"plots/{plot.name}.png") as path:
            path.write_bytes(png_bytes(plot.figure))
    return {
        "page": str(work.path / "report.html"),
        "judgements": len(facts.sections),
        "systems": sum(len(section.systems) for section in facts.sections),
        "steps": len(facts.stages),
        "plots": len(drawn),
    }


STAGE = Stage(
    verb="report",
    config=ReportConfig,
    run=run,
    examples="""
        qontext report runs/mine --out runs/mine/report
        qontext report runs/bm25/scores runs/dense/scores --data data/scifact --out report
    """,
)
