"""Learning curves: scores by the number of labels, and by the steps and minutes of pre-training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from depth import macro, retrievers, sets_of
from study import ARMS, LONG, SCALES
from systems import MAIN, TITLES, Key, Lines, slug, systems_of

from qontext.evaluation import plots
from qontext.evaluation.comparison import SystemScores

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def label_curves(systems: dict[Key, SystemScores]) -> dict[str, Lines]:
    """The scores of an arm by the number of labels, on every set where cells with few and with many are recorded."""
    drawn: dict[str, Lines] = {}
    for place, name in places_with(systems, lambda key: key[0].startswith("curve/")):
        keys = [key for key in systems if key[0] in (place, f"plain/{name}") and "+" not in key[1]]
        lines: Lines = {}
        for arm in ARMS:
            points: dict[float, float] = {
                int(key[1]): systems[key].mean(MAIN)[0] for key in keys if key[2] == arm.name
            }
            if (place, str(max(SCALES["curve"].labels)), arm.name) in systems:
                lines[arm.title] = sorted(points.items())
        drawn[f"labels-{slug(name)}"] = lines
    return drawn


def step_curves(systems: dict[Key, SystemScores]) -> dict[str, Lines]:
    """The scores of an arm without labels by the number of steps of pre-training; none is the start."""
    drawn: dict[str, Lines] = {}
    for place, name in places_with(systems, lambda key: key[2].endswith("-long")):
        amounts = {"": SCALES[place.partition("/")[0]].steps, "-long": LONG["steps"]}
        start = systems.get((place, "0", "none"))
        lines: Lines = {}
        for arm in ARMS:
            own = {end: systems.get((place, "0", f"{arm.name}{end}")) for end in amounts}
            if own["-long"]:
                first = [(0, start.mean(MAIN)[0])] if start else []
                lines[arm.title] = [
                    *first,
                    *((amounts[end], of.mean(MAIN)[0]) for end, of in own.items() if of),
                ]
        drawn[f"steps-{slug(name)}"] = lines
    return drawn


def places_with(systems: dict[Key, SystemScores], wanted: Callable[[Key], bool]) -> list[tuple[str, str]]:
    """Starts and sets of which a system is wanted, and the names of the sets alone."""
    return [(place, place.partition("/")[2]) for place in sorted({key[0] for key in systems if wanted(key)})]


def learning(systems: dict[Key, SystemScores]) -> dict[str, Figure]:
    """Learning curves, over labels and over steps."""
    labels = {name: plots.learning(of, "labels", MAIN) for name, of in label_curves(systems).items()}
    steps = {
        name: plots.learning(of, "steps of pre-training", f"{MAIN}, no labels")
        for name, of in step_curves(systems).items()
    }
    return labels | steps


def snapshot_curves(cells: Sequence[dict[str, Any]], scale: str = "depth") -> dict[str, Lines]:
    """MRR@10, averaged over the sets, after parts of the pre-training: over its steps and over its minutes, without labels
    and of retriever 1."""
    own = [cell for cell in cells if cell["scale"] == scale]
    systems, drawn = systems_of(own), dict[str, Lines]()
    for end, labels in {"": "0", "-labels": retrievers(scale)["1"]}.items():
        for unit in ("steps", "minutes"):
            lines = {
                TITLES[arm]: list(points(own, systems, scale, arm, labels, unit))
                for arm in dict.fromkeys(arm.of for arm in ARMS if arm.at)
                if arm and macro(systems, sets_of(scale, trained=True), labels, arm, MAIN) is not None
            }
            if lines:
                drawn[f"{unit}-{scale}{end}"] = lines
    return drawn


def points(
    cells: Sequence[dict[str, Any]],
    systems: Mapping[Key, SystemScores],
    scale: str,
    arm: str,
    labels: str,
    unit: str,
) -> Iterator[tuple[float, float]]:
    """(amount, mean) of the start, of an arm's snapshots and of its end. A snapshot's minutes are its share of those of the
    whole training, on the machine that took the least."""
    seconds = [
        sum(s for name, s in cell["seconds"].items() if name.startswith(f"pretrain-{arm}-"))
        for cell in cells
        if cell["arm"] == arm
    ]
    parts = SCALES[scale].snapshots
    whole = SCALES[scale].steps if unit == "steps" else min(seconds) / 60
    at = {f"{arm}-at-{part}": part for part in range(1, parts)} | {arm: parts}
    for name, part in {"none": 0, **at}.items():
        mean = macro(systems, sets_of(scale, trained=True), labels, name, MAIN)
        if mean is not None:
            yield round(whole * part / parts, 1 if unit == "minutes" else None), mean


def depth_curves(cells: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Curves of the study at depth, over steps and over minutes."""
    return {
        name: plots.learning(lines, f"{name.partition('-')[0]} of pre-training", f"{MAIN}, mean of the sets")
        for name, lines in snapshot_curves(cells).items()
    }
