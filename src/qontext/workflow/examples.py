"""The examples of a sweep: queries with the first passage of every arm side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qontext.data.runs import read_run
from qontext.evaluation.datasets import load_judgments
from qontext.evaluation.evaluate import threshold
from qontext.evaluation.gather import per_query
from qontext.evaluation.measures import Floats
from qontext.evaluation.side_by_side import (
    First,
    Tops,
    example_rows,
    examples_as_json,
    largest_changes,
    side_by_side,
    texts_of,
    tops,
)
from qontext.evaluation.tables import Cell, Row, Table, to_markdown
from qontext.frame import log
from qontext.frame.artifacts import Workdir, open_artifact
from qontext.frame.errors import choose
from qontext.workflow.ablation import Combination

COUNT = 5
"""The number of gains, and of losses, from the first arm to the last."""


def show_examples(
    evaluation: str, labels: Mapping[Combination, Mapping[str, str]], root: Path, work: Workdir
) -> list[dict[str, Any]]:
    """Show the queries with the largest changes from the first arm to the last, and write them to examples.md.

    `evaluation` is the step whose runs and judgments are shown; empty: no examples. A single arm has no changes.
    """
    if not evaluation or len(labels) < 2:
        return []
    systems: dict[str, tuple[Floats, Tops]] = {}
    queries: list[str] = []
    for combination, steps in labels.items():
        evaluated = open_artifact(root / steps[choose(evaluation, steps, "step with examples")])
        source = evaluated.inputs["qrels"]["path"]
        judged = load_judgments(source, split=evaluated.config.get("split", "test"))
        results = read_run(evaluated.inputs["run"]["path"])
        queries, columns = per_query(evaluated)
        measure, values = next(iter(columns.items()))
        firsts = tops(results, judged.qrels, threshold(judged, evaluated.config.get("relevant")))
        systems[", ".join(part.partition("=")[2] for part in combination)] = values, firsts
    (a, tops_a), *_, (b, tops_b) = systems.values()
    changes = largest_changes(queries, a, b, tops_a, tops_b, count=COUNT)
    examples = side_by_side([change.query for change in changes], queries, systems)
    texts = texts_of(source if Path(source).is_dir() else None, examples)
    rows = example_rows(examples, measure, texts)
    if rows:
        log.show_rows("The first passages of queries with the largest changes", rows)
        work.write_text("examples.md", to_markdown(_table(examples, texts)))
    return [
        {"query": query, "text": texts[0].get(query), "first": examples_as_json(row, texts)}
        for query, row in examples.items()
    ]


def _table(examples: Mapping[str, list[First]], texts: tuple[dict[str, str], dict[str, str]]) -> Table:
    """A group of rows for each query; with the whole passages."""
    table = Table(["relevant", "system", "first passage"], caption="First passages", is_prose=True)
    for query, row in examples.items():
        table.rows.append(Row(heading=texts[0].get(query, query)))
        for first in row:
            text = "no results" if first.passage is None else texts[1].get(first.passage, first.passage)
            cells = ("✓" if first.right else "✗", first.system, text)
            table.rows.append(Row(tuple(Cell(cell, is_text=True) for cell in cells)))
    return table
