"""The examples of a sweep: queries with the first passage of every arm side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qontext.data.runs import read_run
from qontext.evaluation.benchmarks import load_judgments
from qontext.evaluation.evaluate import per_query, threshold
from qontext.evaluation.examples import QueryExample, Tops, example_rows, examples_of, tops
from qontext.evaluation.measures import Floats
from qontext.evaluation.tables import Cell, Row, Table, to_markdown
from qontext.frame import log
from qontext.frame.artifacts import Workdir, open_artifact
from qontext.frame.errors import choose
from qontext.workflow.ablation import Combination


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
    first, *_, last = systems
    data = source if Path(source).is_dir() else None
    examples = examples_of(queries, systems, first, last, data=data)
    if examples:
        rows = example_rows(examples, measure)
        log.show_rows("The first passages of queries with the largest changes", rows)
        work.write_text("examples.md", to_markdown(_table(examples)))
    return [asdict(example) for example in examples]


def _table(examples: Sequence[QueryExample]) -> Table:
    """A group of rows for each query; with the whole passages."""
    table = Table(["relevant", "system", "first passage"], caption="First passages", is_prose=True)
    for example in examples:
        table.rows.append(Row(heading=example.text or example.query))
        for first in example.first:
            text = first.text or first.passage or "no results"
            cells = ("✓" if first.right else "✗", first.system, text)
            table.rows.append(Row(tuple(Cell(cell, is_text=True) for cell in cells)))
    return table
