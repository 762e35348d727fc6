"""How what a report shows was made: steps, times, speeds, machines, settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext import log
from qontext.artifacts import Artifact
from qontext.evaluate.gather import Facts
from qontext.evaluate.tables import Cell, Row, Table


def steps_table(facts: Facts, price: float | None) -> Table:
    """Every finished step: when, how long, how fast, what came out; and what it all took."""
    table = Table(["Step", "Verb", "Finished", "Took", "Speed", "Result"], caption="What was run")
    for path, stage in facts.stages:
        made = stage.meta["made"]
        cells = (
            Cell(Path(path).name, title=path),
            Cell(stage.verb, is_text=True),
            Cell(made["finished"][:16].replace("T", " "), is_text=True),
            Cell(log.duration(made["seconds"])),
            Cell(_speeds(stage), is_text=True),
            Cell(_short(stage.summary), is_text=True),
        )
        table.rows.append(Row(cells))
    total = f"Total time: {log.duration(facts.seconds)}"
    if price is not None:
        total += f", at {price:g} per hour {price * facts.seconds / 3600:,.2f}"
    table.notes = [total + ".", *(f"Not finished, not included: {path}." for path in facts.unfinished)]
    return table


def machines(facts: Facts) -> Iterator[str]:
    """A line for every machine and set of versions that took part."""
    described = dict.fromkeys(
        json.dumps([s.meta["made"].get("machine", {}), s.meta["made"]["by"], s.meta["made"]["python"]])
        for _, s in facts.stages
    )
    seen: dict[str, None] = {}
    for text in described:
        machine, by, python = json.loads(text)
        parts = [
            ", ".join(machine.get("gpus", [])),
            _hardware(machine),
            f"{by}, Python {python}",
            ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items()),
        ]
        seen[" · ".join(part for part in parts if part)] = None
    yield from seen


def _hardware(machine: dict[str, Any]) -> str:
    parts = (machine.get("processor"), machine.get("cores"), machine.get("memory_gib"))
    return "{}, {} cores, {} GiB".format(*parts) if all(parts) else ""


def _speeds(stage: Artifact) -> str:
    found = {k.removesuffix("_per_second"): v for k, v in stage.summary.items() if k.endswith("_per_second")}
    return ", ".join(f"{value:,.0f} {name.replace('_', ' ')}/s" for name, value in found.items())


def _short(summary: dict[str, Any]) -> str:
    """The first few numbers of a summary."""
    flat = {**summary.get("measures", {}), **summary}
    numbers = [(k, v) for k, v in flat.items() if isinstance(v, int | float) and not isinstance(v, bool)]
    shown = [(k, v) for k, v in numbers if "second" not in k][:4]
    return ", ".join(
        f"{k.replace('_', ' ')} {v:,}" if isinstance(v, int) else f"{k} {v:.4g}" for k, v in shown
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
