"""The provenance of a report's results: steps, times, speeds, machines, settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext.evaluation.gather import Facts
from qontext.evaluation.tables import Cell, Row, Table
from qontext.frame import log
from qontext.frame.artifacts import Artifact


def steps_table(facts: Facts, price: float | None) -> Table:
    """Every finished step: date, duration, speed, results; and the total time."""
    table = Table(["Step", "Verb", "Finished", "Took", "Speed", "Result"], caption="Steps", is_prose=True)
    for path, stage in facts.stages:
        origin = stage.meta["made"]
        cells = (
            Cell(Path(path).name, title=path),
            Cell(stage.verb, is_text=True),
            Cell(origin["finished"][:16].replace("T", " "), is_text=True),
            Cell(log.duration(origin["seconds"])),
            Cell(_speeds(stage), is_text=True),
            Cell(_short(stage.summary), is_text=True),
        )
        table.rows.append(Row(cells))
    total = f"Total time: {log.duration(facts.seconds)}"
    if price is not None:
        total += f", at {price:g} per hour {price * facts.seconds / 3600:,.2f}"
    table.notes = [total + ".", *(f"Not finished and not included: {path}." for path in facts.unfinished)]
    return table


def machines(facts: Facts) -> Iterator[str]:
    """A line for each machine and set of versions."""
    described = dict.fromkeys(
        json.dumps([s.meta["made"].get("machine", {}), s.meta["made"]["by"], s.meta["made"]["python"]])
        for _, s in facts.stages
    )
    lines: dict[str, None] = {}
    for text in described:
        machine, by, python = json.loads(text)
        parts = [
            ", ".join(machine.get("gpus", [])),
            _hardware(machine),
            f"{by}, Python {python}",
            ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items()),
        ]
        lines[" · ".join(part for part in parts if part)] = None
    yield from lines


def _hardware(machine: dict[str, Any]) -> str:
    parts = (machine.get("processor"), machine.get("cores"), machine.get("memory_gib"))
    return "{}, {} cores, {} GiB".format(*parts) if all(parts) else ""


def _speeds(stage: Artifact) -> str:
    speeds = {k.removesuffix("_per_second"): v for k, v in stage.summary.items() if k.endswith("_per_second")}
    return ", ".join(
        f"{value:,.0f} {name.replace('_', ' ')}/s"
        for name, value in speeds.items()
        if isinstance(value, int | float)
    )


def _short(summary: dict[str, Any]) -> str:
    """The first few numbers of a summary."""
    measures = summary.get("measures")
    flat = {**(measures if isinstance(measures, dict) else {}), **summary}
    numbers = [(k, v) for k, v in flat.items() if isinstance(v, int | float) and not isinstance(v, bool)]
    first = [(k, v) for k, v in numbers if "second" not in k][:4]
    return ", ".join(
        f"{k.replace('_', ' ')} {v:,}" if isinstance(v, int) else f"{k} {v:.4g}" for k, v in first
    )


def all_settings(facts: Facts) -> str:
    """Settings and inputs of every step, as JSON."""
    rows = {
        path: {
            "verb": stage.verb,
            "settings": stage.config,
            "from": {name: entry["path"] for name, entry in stage.meta["inputs"].items()},
            "digest": stage.digest,
        }
        for path, stage in facts.stages
    }
    return json.dumps(rows, indent=2, ensure_ascii=False)
