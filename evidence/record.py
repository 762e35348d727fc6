"""The file of a cell: JSON with one line for each field and for the scores of each search.

Scores take about a byte per question: the rank of the first relevant passage as one character, `1` to `9` and `X` for ten,
`+` if it is found between ranks 11 and 100, `.` if it is not. That determines MRR@10, and for a question with one relevant
passage nDCG@10 and R@100, too. Where these differ from it, the value stands with the numbers of its questions. Neighborhood
recall, which no rank determines, has its values as text.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from study import MEASURES, NEIGHBORS

RANKS = "123456789X"
MRR, NDCG, RECALL = MEASURES.split()
IMPLIED = {
    MRR: {".": 0.0, "+": 0.0} | {mark: round(1 / rank, 4) for rank, mark in enumerate(RANKS, 1)},
    NDCG: {".": 0.0, "+": 0.0}
    | {mark: round(1 / math.log2(1 + rank), 4) for rank, mark in enumerate(RANKS, 1)},
    RECALL: {".": 0.0, "+": 1.0} | dict.fromkeys(RANKS, 1.0),
}
"""Measure → its value for a question with one relevant passage, by the mark of that passage's rank."""
MARKS = {IMPLIED[MRR][mark]: mark for mark in RANKS}
Values = dict[str, list[float]]
"""Measure → a value for each question."""


def recorded(values: Mapping[str, Iterable[float]]) -> Values:
    """Values of questions, as precise as cells hold them."""
    return {measure: [round(float(value), 4) for value in column] for measure, column in values.items()}


def read_cells(folder: Path) -> list[dict[str, Any]]:
    return [read_cell(file) for file in sorted(folder.rglob("*.json"))]


def read_cell(file: Path) -> dict[str, Any]:
    cell: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return cell | {"scores": {name: unpacked(scores) for name, scores in cell["scores"].items()}}


def write_cell(file: Path, cell: Mapping[str, Any]) -> None:
    scores = {name: packed(values) for name, values in cell["scores"].items()}
    lines = [
        f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
        for name, value in cell.items()
        if name != "scores"
    ]
    searches = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in scores.items())
    lines.append(f'"scores": {{\n{searches}\n}}')
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".tmp")
    fresh.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    fresh.replace(file)


def packed(values: Values) -> dict[str, Any]:
    ranks = "".join(
        MARKS.get(reciprocal, "+" if recall else ".")
        for reciprocal, recall in zip(values[MRR], values[RECALL])
    )
    scores: dict[str, Any] = {"ranks": ranks}
    for measure in (NDCG, RECALL):
        others = defaultdict(list)
        for number, (mark, value) in enumerate(zip(ranks, values[measure])):
            if value != IMPLIED[measure][mark]:
                others[value].append(str(number))
        if others:
            scores[measure] = {str(value): " ".join(others[value]) for value in sorted(others)}
    if NEIGHBORS in values:
        scores[NEIGHBORS] = " ".join(f"{value:g}" for value in values[NEIGHBORS])
    return scores


def unpacked(scores: Mapping[str, Any]) -> Values:
    values = {measure: [implied[mark] for mark in scores["ranks"]] for measure, implied in IMPLIED.items()}
    for measure, column in values.items():
        for value, numbers in scores.get(measure, {}).items():
            for number in numbers.split():
                column[int(number)] = float(value)
    if NEIGHBORS in scores:
        values[NEIGHBORS] = [float(value) for value in scores[NEIGHBORS].split()]
    return values
