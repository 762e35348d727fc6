"""The scores of a recipe, beside the published results of the systems that it reproduces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qontext.evaluation import published
from qontext.frame import log
from qontext.workflow.recipe import Recipe


def show_scores(recipe: Recipe, rows: Sequence[dict[str, Any]], *, beside: bool) -> list[dict[str, Any]]:
    """A row per evaluation of a recipe, × 100; then, with `beside`, the published systems."""
    evaluating = {step.name for step in recipe.steps if step.stage.verb == "evaluate"}
    scores = [
        {
            "system": row["step"],
            "benchmark": row["summary"]["benchmark"],
            **_percent(row["summary"]["measures"]),
        }
        for row in rows
        if row["step"] in evaluating
    ]
    if scores and beside:
        scores += published_rows(recipe)
    if scores:
        columns = list(dict.fromkeys(key for row in scores for key in row))
        log.show_rows("Scores, × 100", [{key: row.get(key) for key in columns} for row in scores])
    return scores


def published_rows(recipe: Recipe) -> list[dict[str, Any]]:
    """A row for each benchmark of the published systems that the recipe reproduces."""
    return [
        {"system": f"published: {row.system}", "benchmark": benchmark, **figures}
        for system in recipe.published
        for row in published.named(system)
        for benchmark, figures in row.figures.items()
    ]


def _percent(measures: dict[str, float]) -> dict[str, float]:
    return {name: round(100 * value, 1) for name, value in measures.items()}
