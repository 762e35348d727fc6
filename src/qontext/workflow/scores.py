"""The scores of a recipe, beside the published results of the systems that it reproduces."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

from qontext.evaluation import benchmarks
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
        log.show_rows("Scores, × 100", aligned(scores))
    return scores


def published_rows(recipe: Recipe) -> list[dict[str, Any]]:
    """A row for each published system and benchmark that the recipe reproduces."""
    patterns = recipe.benchmarks or ("*",)
    return [
        {"system": f"published: {row.system}", "benchmark": benchmark, **figures}
        for system in recipe.published
        for row in benchmarks.named(system)
        for benchmark, figures in row.figures.items()
        if any(fnmatch.fnmatch(benchmark, pattern) for pattern in patterns)
    ]


def aligned(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the columns of all of them."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return [{key: row.get(key) for key in columns} for row in rows]


def _percent(measures: dict[str, float]) -> dict[str, float]:
    return {name: round(100 * value, 1) for name, value in measures.items()}
