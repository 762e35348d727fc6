"""Artifacts, for the pages that browse them: settings, inputs, results and loss curves. Artifacts are named
by their path below a root. Names in requests are looked up among existing ones, so that no part of a URL
becomes a path.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from qontext.frame import log
from qontext.frame.artifacts import META, Artifact, open_artifact
from qontext.frame.errors import QontextError
from qontext.serve.errors import Unknown
from qontext.serve.web import page
from qontext.training import metrics

DEPTH, MOST = 4, 1_000
REPORT, LONGEST_REPORT = "report.md", 200_000


@dataclass(frozen=True)
class Curve:
    """One loss over the steps of a phase."""

    phase: str
    name: str
    points: list[tuple[int, float]]


class Runs:
    """The artifacts below a directory, looked up each time they are listed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def all(self) -> dict[str, Artifact]:
        """Name → artifact, by name; unreadable ones are skipped."""
        artifacts: dict[str, Artifact] = {}
        for folder, below, files in os.walk(self.root):
            relative = Path(folder).relative_to(self.root)
            below[:] = sorted(name for name in below if not name.startswith("."))
            if META in files:
                below.clear()
                try:
                    artifacts[relative.as_posix()] = open_artifact(folder)
                except QontextError:
                    continue
            if len(relative.parts) >= DEPTH or len(artifacts) >= MOST:
                below.clear()
        return dict(sorted(artifacts.items()))

    def get(self, name: str) -> Artifact:
        artifacts = self.all()
        if name not in artifacts:
            raise Unknown(f"there is no run {name!r}")
        return artifacts[name]


def curves(artifact: Artifact) -> list[Curve]:
    """The losses that a training logged; none for other artifacts."""
    file = artifact.path / "logs" / "metrics.jsonl"
    if not file.is_file():
        return []
    points_of: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for line in metrics.read(file):
        losses = line.get("losses") if isinstance(line, dict) else None
        for name, value in losses.items() if isinstance(losses, dict) else ():
            if isinstance(value, int | float) and math.isfinite(value) and isinstance(line.get("step"), int):
                points_of.setdefault((str(line.get("phase")), name), []).append((line["step"], float(value)))
    return [Curve(phase, name, points) for (phase, name), points in points_of.items()]


def report_of(artifact: Artifact) -> str:
    """The text of a report; empty for other artifacts."""
    if REPORT not in artifact.meta["parts"]:
        return ""
    return artifact.part(REPORT).read_text(encoding="utf-8", errors="replace")[:LONGEST_REPORT]


def path_of(curve: Curve, width: float, height: float) -> str:
    """The curve as the `d` of an SVG path in a box of this size."""
    steps, values = zip(*curve.points)
    low, high = min(values), max(values)
    across, up = max(steps) - min(steps) or 1, high - low or 1.0
    places = [
        f"{width * (step - min(steps)) / across:.1f},{height * (high - value) / up:.1f}"
        for step, value in curve.points
    ]
    return "M" + " L".join(places)


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under joined names."""
    flattened: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flattened |= flat(value, f"{prefix}{name}.")
        else:
            flattened[prefix + name] = value
    return flattened


def differences(a: Artifact, b: Artifact) -> list[tuple[str, str, Any, Any]]:
    """(section, name, value in a, value in b) of all settings and inputs that differ, and of all results."""
    rows: list[tuple[str, str, Any, Any]] = []
    sides = [
        ("settings", flat(a.config), flat(b.config), False),
        ("inputs", _inputs(a), _inputs(b), False),
        ("results", flat(a.summary), flat(b.summary), True),
    ]
    for section, left, right, keep in sides:
        for name in dict.fromkeys([*left, *right]):
            one, other = left.get(name), right.get(name)
            if keep or one != other:
                rows.append((section, name, one, other))
    return rows


def shown(value: Any) -> str:
    """A setting or result as text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value[:20]) + (" …" if len(value) > 20 else "")
    return str(value)[:2_000]


def _inputs(artifact: Artifact) -> dict[str, str]:
    return {name: f"{entry['path']} ({entry['digest'][:12]})" for name, entry in artifact.inputs.items()}


router = APIRouter(include_in_schema=False)
WIDTH, HEIGHT = 560.0, 160.0


def runs_of(request: Request) -> Runs:
    runs: Runs = request.app.state.runs
    return runs


@router.get("/runs")
def index(request: Request) -> Response:
    """All artifacts, with a form that compares two of them."""
    rows = [
        (
            name,
            artifact.verb,
            artifact.meta["made"]["finished"][:16].replace("T", " "),
            _brief(flat(artifact.summary)),
        )
        for name, artifact in runs_of(request).all().items()
    ]
    return page("runs.html", request, rows=rows)


@router.get("/runs/show")
def show(request: Request) -> Response:
    """One artifact."""
    name = request.query_params.get("run", "")
    artifact = runs_of(request).get(name)
    facts = {
        "made by": f"qontext {artifact.verb}, {artifact.meta['made']['by']}",
        "finished": artifact.meta["made"]["finished"],
        "took": log.duration(artifact.meta["made"]["seconds"]),
        "files": f"{len(artifact.meta['parts'])}",
        "digest": artifact.digest,
    }
    inputs = {field: entry["path"] for field, entry in artifact.inputs.items()}
    sections = [
        ("Made", facts), ("From", inputs), ("Results", flat(artifact.summary)), ("Settings", flat(artifact.config))
    ]  # fmt: skip
    tables = [
        (title, [(key, shown(value)) for key, value in rows.items()]) for title, rows in sections if rows
    ]
    charts = [(c, path_of(c, WIDTH, HEIGHT)) for c in curves(artifact) if len(c.points) > 1]
    values: dict[str, Any] = {"tables": tables, "charts": charts, "report": report_of(artifact)}
    return page("run.html", request, name=name, width=WIDTH, height=HEIGHT, **values)


@router.get("/runs/compare")
def compare(request: Request) -> Response:
    """Two artifacts side by side: differences, and all results."""
    names = [request.query_params.get(side, "") for side in "ab"]
    a, b = (runs_of(request).get(name) for name in names)
    rows = [(section, name, shown(x), shown(y), _change(x, y)) for section, name, x, y in differences(a, b)]
    return page("run_compare.html", request, names=names, rows=rows)


def _brief(values: dict[str, object]) -> str:
    numbers = [(key, value) for key, value in values.items() if isinstance(value, int | float)]
    return ", ".join(f"{key} {shown(value)}" for key, value in numbers[:4])


def _change(a: object, b: object) -> str:
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
    return f"{b - a:+.6g}" if numbers and a != b else ""  # type: ignore[operator]
