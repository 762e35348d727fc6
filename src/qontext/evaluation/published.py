"""Published results in percent, shown beside ours for the same benchmark; `published.toml` has the figures.

The literature's MS MARCO "R@50" and "R@1k" are the share of queries with a relevant passage in the top k, so
they are listed there as ``Success@k``. For systems that a paper cites, the source is the citing paper. If two
papers report different results for one system, each has a row.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Published:
    """One system's published results: benchmark → measure → percent."""

    system: str
    source: str
    figures: dict[str, dict[str, float]]


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PAPERS: dict[str, str] = _TABLES["papers"]


def _rows(kind: str) -> tuple[Published, ...]:
    rows = []
    for group in _TABLES[kind]:
        source = ", ".join(filter(None, (PAPERS[group["paper"]], group.get("place"))))
        rows += [Published(row.pop("system"), source, row) for row in group["rows"]]
    return tuple(rows)


ROWS, ABLATIONS, LEADERBOARDS = map(_rows, ("main", "ablations", "leaderboards"))
"""The papers' main tables; variants of a method, not shown in reports; queries whose judgments are not public."""
BEIR_SETS = tuple(name.removeprefix("beir/") for name in ROWS[-1].figures)
"""The 14 sets of the papers' zero-shot table, in its order."""


def rows_for(benchmark: str) -> list[Published]:
    """The published systems with a result for this benchmark, in the papers' order."""
    return [row for row in ROWS if benchmark in row.figures]


def named(system: str) -> list[Published]:
    """The rows of a system, ablations included; each name has one."""
    return [row for row in (*ROWS, *ABLATIONS, *LEADERBOARDS) if row.system == system]
