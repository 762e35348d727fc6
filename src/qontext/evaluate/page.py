"""A report as one HTML page that needs nothing else, and as Markdown beside its figures."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from qontext.evaluate import plots
from qontext.evaluate.contents import Block
from qontext.evaluate.tables import to_html, to_markdown

_CSS = Path(__file__).with_name("page.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def to_page(title: str, subtitle: str, blocks: Sequence[Block]) -> str:
    """The whole page: no script, no request."""
    body = "\n".join(_block(block) for block in blocks)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{_h(title)}</title>
<style>{_CSS.read_text(encoding="utf-8")}</style>
</head>
<body>
<header><h1>{_h(title)}</h1><p class="soft">{_h(subtitle)}</p></header>
<main>
{body}
</main>
<footer>Made by qontext. Scores are shown × 100; results.csv has every digit.</footer>
</body>
</html>
"""


def _block(block: Block) -> str:
    lines = [f"<section><h2>{_h(block.heading)}</h2>"]
    lines += [f'<p class="note">{_h(text)}</p>' for text in block.text]
    lines += [to_html(table) for table in block.tables]
    if block.plots:
        drawings = ((_h(plot.caption), plot.svg) for plot in block.plots)
        figures = (
            f"<figure><figcaption>{c}</figcaption>{plots.inline_svg(svg, c)}</figure>" for c, svg in drawings
        )
        lines += ['<div class="plots">', *figures, "</div>"]
    lines += [
        f"<details><summary>{_h(s)}</summary><pre>{_h(text)}</pre></details>" for s, text in block.details
    ]
    return "\n".join([*lines, "</section>"])


def to_markdown_page(title: str, subtitle: str, blocks: Sequence[Block]) -> str:
    """The same in Markdown; figures are the PNG files beside it."""
    lines = [f"# {_h(title)}", "", _h(subtitle), ""]
    for block in blocks:
        lines += [f"## {_h(block.heading)}", ""]
        for text in block.text:
            lines += [_h(text), ""]
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
