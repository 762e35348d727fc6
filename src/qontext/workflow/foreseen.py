"""The nb-recall of a sweep's arms by depth: how much of the next stage's first results each run contains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qontext.evaluation.gather import Curves
from qontext.evaluation.tables import to_csv
from qontext.frame import log
from qontext.frame.artifacts import Workdir, is_artifact, open_artifact
from qontext.frame.damage import read_json
from qontext.workflow.ablation import Combination

SHOWN = (50, 100, 200, 500, 1000)
"""The depths in the table; curves.csv has all."""


def show_foreseen(
    labels: Mapping[Combination, Mapping[str, str]], root: Path, work: Workdir
) -> list[dict[str, Any]]:
    """Show nb-recall by depth, and write it to curves.csv; a row for each combination, curve and depth."""
    rows = []
    for combination, steps in labels.items():
        name = ", ".join(part.partition("=")[2] for part in combination)
        artifacts = [open_artifact(root / label) for label in steps.values() if is_artifact(root / label)]
        for evaluation in (
            one for one in artifacts if one.config.get("next_run") or "next_run" in one.inputs
        ):
            read = read_json(evaluation.part("curves.json"), Curves)
            rows += [
                {"arm": name, "curve": curve, "depth": depth, "value": value}
                for curve, values in read["curves"].items()
                if curve.startswith("nb-recall")
                for depth, value in zip(read["depths"], values)
            ]
    if rows:
        work.write_text("curves.csv", to_csv(list(rows[0]), [list(row.values()) for row in rows]))
        log.show_rows("nb-recall by depth", _table(rows))
    return rows


def _table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each arm and curve."""
    table: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["depth"] in SHOWN:
            key = row["arm"], row["curve"]
            table.setdefault(key, {"arm": key[0], "curve": key[1]})[f"@{row['depth']}"] = (
                f"{row['value']:.3f}"
            )
    return list(table.values())
