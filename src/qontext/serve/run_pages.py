"""Pages that browse artifacts: a list, one of them, two compared."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from qontext.frame import log
from qontext.serve.runs import Runs, curves, differences, flat, path_of, report_of, shown
from qontext.serve.web import page

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
