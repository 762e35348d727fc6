"""The shipped recipes and sweeps: what each runs, needs and reproduces."""

from __future__ import annotations

from qontext import api
from qontext.frame import log
from qontext.workflow.tables import SHIPPED, find_recipe

from .text import SOURCE, inline, page


def pages() -> dict[str, str]:
    with log.warnings_only():
        listed = api.recipes()
    rows, sweeps = (
        [
            [_link(r["name"]), inline(r["title"]), _names(r["needs"]), str(r[last])]
            for r in listed["recipes"]
            if bool(r["arms"]) == (last == "arms")
        ]
        for last in ("published", "arms")
    )
    parts = [
        "# Recipes",
        "`qontext run NAME` runs a recipe or the arms of a sweep; `qontext recipes NAME` shows every "
        "step and setting. Inputs are set with `--set inputs.NAME=PATH`. Published figures are those of the papers.",
        _table(["Recipe", "", "Inputs", "Published"], rows),
        "## Sweeps",
        _table(["Sweep", "", "Inputs", "Arms"], sweeps),
    ]
    return {
        "reference/recipes.md": page(
            "Recipes", "All shipped recipes and sweeps.", "\n\n".join(parts), boost=0.8
        )
    }


def _link(name: str) -> str:
    path = find_recipe(name).relative_to(SHIPPED.parents[2]).as_posix()
    return f"[`{name}`]({SOURCE}/{path})"


def _names(listed: str) -> str:
    return ", ".join(f"`{name}`" for name in listed.split(", ") if name)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in [head, *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])
