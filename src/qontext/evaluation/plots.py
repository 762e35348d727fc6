"""The figures of a report, drawn by matplotlib as SVG.

Inside a page, text and axes have the color of the page's text (for light and dark mode), and text is kept as
text, in the page's font. The colors of lines are readable on both backgrounds.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

COLORS = ("#2f7fc1", "#e0762f", "#2e9e73", "#c2549d", "#8a6fd1", "#b8860b", "#d14b4b", "#4aa3b5")
_INK = "#010203"  # stands for the page's text color until the drawing is put into the page
_WIDTH = 3.6  # inches; the same for all figures, so that their text has the same size on the page
_TICKS = 8  # the most amounts that are labeled each
_STYLE: Any = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), _INK),
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#808080",
    "grid.alpha": 0.22,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
}


def _styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Run the drawing function with our style, regardless of user settings."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        import matplotlib as mpl

        with mpl.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return drawn


@_styled
def intervals(values: Mapping[str, tuple[float, float, float]], measure: str) -> Figure:
    """Each system's mean with its 95 % interval; system → (mean, low, high)."""
    figure, axes = _figure(0.75 + 0.3 * len(values))
    for i, (mean, low, high) in enumerate(values.values()):
        axes.plot([100 * low, 100 * high], [i, i], color=_color(i), linewidth=2, solid_capstyle="round")
        axes.plot(100 * mean, i, "o", color=_color(i), markersize=6)
    axes.set_yticks(range(len(values)), [_text(name, 26) for name in values])
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(measure)
    return figure


@_styled
def learning(lines: Mapping[str, Sequence[tuple[float, float]]], amount: str, measure: str) -> Figure:
    """A measure by the amount of something, such as steps; system → pairs of both. 0 has a place on the axis,
    which is logarithmic otherwise. Few amounts are labeled each, more by powers of ten."""
    figure, axes = _figure(2.8)
    for i, (name, points) in enumerate(lines.items()):
        at, values = zip(*points)
        axes.plot(
            at, [100 * v for v in values], color=_color(i), label=_text(name, 32), marker="o", markersize=2.5
        )
    amounts = sorted({at for points in lines.values() for at, _ in points})
    axes.set_xscale("symlog", linthresh=min((at for at in amounts if at > 0), default=1))
    if len(amounts) <= _TICKS:
        axes.set_xticks(amounts, [f"{at:,}" for at in amounts])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(amount)
    axes.set_ylabel(measure)
    axes.legend(loc="best")
    return figure


def inline_svg(svg: bytes, description: str) -> str:
    """An SVG for inclusion in a page, with the page's color and font, scaling with its column."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = text.replace(_INK, "currentColor")
    text = re.sub(r"font: (\d[\d.]*)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", text, count=1)
    return text.replace("<svg ", f'<svg role="img" aria-label="{description}" ', 1)


def svg_bytes(figure: Figure, name: str, *, ink: str = _INK) -> bytes:
    """An SVG file; the same drawing produces the same bytes, with unique ids. Text and axes have the color `ink`."""
    import matplotlib as mpl

    out = io.BytesIO()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return out.getvalue().replace(_INK.encode(), ink.encode())


def _figure(height: float) -> tuple[Figure, Axes]:
    # No pyplot: it would keep figures and pick a display.
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def _color(i: int) -> str:
    return COLORS[i % len(COLORS)]


def _text(name: str, most: int = 60) -> str:
    """The name, shortened, with escaped dollar signs (which would start a formula)."""
    return (name if len(name) <= most else name[: most - 1] + "…").replace("$", r"\$")
