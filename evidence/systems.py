"""What cells measured, by arm: the values of all questions, with every seed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from study import ARMS, PILOT, SCALES

from qontext.evaluation.comparison import SystemScores

MAIN = "MRR@10"
TITLES = {arm.name: arm.title for arm in ARMS}
HOW = {"mined": ", mined", "bm25": " + BM25", "centered": ", centered", "whitened": ", whitened"}
"""The negatives of fine-tuning and the treatment of vectors in a search, by the ends of a key of scores."""
Key = tuple[str, str, str]
"""Start and data set, a number of labels, an arm."""
Lines = dict[str, list[tuple[float, float]]]
"""Of a plot: each with its points."""


def place_of(cell: dict[str, Any]) -> str:
    """The start and the data set of a cell: what is equal in all cells that are compared."""
    return f"{cell['scale']}/{cell['set']}"


def is_deep(cell: dict[str, Any]) -> bool:
    """True for cells of the study at depth and its pilots, whose arms are trained on several sets joined."""
    return bool(SCALES[cell["scale"].removesuffix(PILOT)].pool)


def values_of(cells: Sequence[dict[str, Any]]) -> dict[Key, dict[int, dict[str, Any]]]:
    """The scores of each arm with each seed: measure → the values of all questions. Pilots are left out."""
    values: dict[Key, dict[int, dict[str, Any]]] = defaultdict(dict)
    for cell in (cell for cell in cells if not cell["scale"].endswith(PILOT)):
        for labels, scores in cell["scores"].items():
            columns = {measure: np.array(column) for measure, column in scores.items()}
            values[place_of(cell), labels, cell["arm"]][cell["seed"]] = columns
    return values


def systems_of(cells: Sequence[dict[str, Any]]) -> dict[Key, SystemScores]:
    """The scores of each arm, with all its seeds."""
    return {
        key: SystemScores(TITLES[key[2]], list(seeds.values())) for key, seeds in values_of(cells).items()
    }


def amounts_of(systems: dict[Key, SystemScores], data: str) -> list[str]:
    """The numbers of labels on a data set, without and with BM25."""
    amounts = {labels for name, labels, _ in systems if name == data}
    return sorted(amounts, key=lambda labels: (int(labels.partition("+")[0]), labels))


def measures_of(labels: str) -> list[str]:
    """The measures of a column; of a fusion or a control, the main one is enough."""
    return [MAIN] if "+" in labels else [MAIN, "R@100"]


def labeled(labels: str) -> str:
    number, *hows = labels.split("+")
    return ("no labels" if number == "0" else f"{int(number):,} labels") + "".join(HOW[how] for how in hows)


def slug(name: str) -> str:
    return re.sub(r"\W+", "-", name)
