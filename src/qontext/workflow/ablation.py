"""The table of a sweep: a row per arm, averaged over seeds, with the difference from the first arm and its
significance; and the nb-recall of the arms by depth, how much of the next stage's first results each run contains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qontext.evaluation.comparison import Difference, SystemScores, difference, format_p, holm, with_spread
from qontext.evaluation.evaluate import Curves, per_query
from qontext.evaluation.measures import Floats
from qontext.evaluation.tables import Cell, Row, Table, to_markdown
from qontext.frame import log
from qontext.frame.artifacts import Workdir, is_artifact, open_artifact
from qontext.frame.files import read_json
from qontext.workflow.sweep import Combination

DEPTHS = (50, 100, 200, 500, 1000)
"""The depths of the table of nb-recall; curves.json of the evaluations have all."""


@dataclass(frozen=True, eq=False)
class ArmScores:
    """The scores of a combination by one evaluation: measure → [Q] a value per query."""

    values: Mapping[str, Floats]
    queries: Sequence[str]


@dataclass(frozen=True)
class ArmDifference:
    """The difference of an arm from the first one on the main measure of an evaluation; `p` is Holm-corrected over all."""

    arm: Combination
    evaluation: str
    measure: str
    queries: int
    difference: Difference
    p: float

    def as_json(self) -> dict[str, Any]:
        d = self.difference
        return {
            "settings": _settings(self.arm),
            "measure": _prefixed(self.evaluation, self.measure),
            "queries": self.queries,
            "difference": d.mean,
            "low": d.low,
            "high": d.high,
            "p": self.p,
        }


Arms = dict[Combination, list[ArmScores]]
"""Combination without its seeds → the scores of every seed."""


def show_results(
    axes: Sequence[str], labels: Mapping[Combination, Mapping[str, str]], root: Path, work: Workdir
) -> dict[str, Any]:
    """Write and show the tables of a sweep, whose axes have these names."""
    evaluations = read_scores(labels, root)
    by_arm = {name: arms_of(cells) for name, cells in evaluations.items()}
    comparisons = compare_arms(by_arm)
    tables = [ablation_table(axes, name, arms, comparisons) for name, arms in by_arm.items()]
    work.write_text("sweep.md", "\n".join(map(to_markdown, tables)))
    for table in tables:
        rows = [[cell.text + " *" * cell.is_best for cell in row.cells] for row in table.rows]
        log.show_rows(table.caption, [dict(zip(table.columns, row)) for row in rows])
        for note in table.notes:
            log.note(note.replace("Bold:", "*:"))
    measures: dict[Combination, dict[str, float]] = {c: {} for c in labels}
    for name, cells in evaluations.items():
        for c, scores in cells.items():
            measures[c] |= {_prefixed(name, m): float(v.mean()) for m, v in scores.values.items()}
    return {
        "combinations": [{"settings": _settings(c), "measures": means} for c, means in measures.items()],
        "comparisons": [row.as_json() for row in comparisons],
        "neighborhood_recall": show_neighborhood_recall(labels, root),
    }


def _settings(combination: Combination) -> dict[str, str]:
    return dict(part.split("=", 1) for part in combination)


def _prefixed(evaluation: str, measure: str) -> str:
    return f"{evaluation}: {measure}" if evaluation else measure


def read_scores(
    labels: Mapping[Combination, Mapping[str, str]], root: Path
) -> dict[str, dict[Combination, ArmScores]]:
    """The scores of the combinations by evaluation, whose name is empty if there is only one."""
    found: dict[str, dict[Combination, ArmScores]] = {}
    for combination, steps in labels.items():
        for name, label in steps.items():
            if is_artifact(root / label) and (artifact := open_artifact(root / label)).verb == "evaluate":
                queries, columns = per_query(artifact)
                found.setdefault(name, {})[combination] = ArmScores(columns, queries)
    return found if len(found) > 1 else dict(zip(("",), found.values()))


def arms_of(cells: Mapping[Combination, ArmScores]) -> Arms:
    arms: Arms = {}
    for combination, scores in cells.items():
        key = tuple(part for part in combination if not _is_seed(part.partition("=")[0]))
        arms.setdefault(key, []).append(scores)
    return arms


def _is_seed(setting: str) -> bool:
    return setting.rpartition(".")[2] == "seed"


def compare_arms(evaluations: Mapping[str, Arms]) -> list[ArmDifference]:
    """Every arm against the first of each evaluation on its main measure, by each query's mean over seeds. Arms scored on
    other queries than the first are skipped."""
    rows = []
    for name, arms in evaluations.items():
        (_, first), *others = arms.items()
        measure, queries = next(iter(first[0].values)), first[0].queries
        for key, seeds in others:
            if all(scores.queries == queries and measure in scores.values for scores in (*first, *seeds)):
                a, b = (_system(s, measure).per_query(measure) for s in (first, seeds))
                rows.append((key, name, measure, len(queries), difference(a, b)))
    corrected = holm([row[4].p for row in rows])
    return [ArmDifference(*row, p) for row, p in zip(rows, corrected)]


def _system(seeds: Sequence[ArmScores], measure: str) -> SystemScores:
    return SystemScores("", [{measure: scores.values[measure]} for scores in seeds])


def ablation_table(
    axes: Sequence[str], evaluation: str, arms: Arms, comparisons: Sequence[ArmDifference]
) -> Table:
    """A row per arm. The best is bold where it differs significantly from the first arm; the first, from all others."""
    columns = [name for name in axes if not _is_seed(name)]
    measures = list(dict.fromkeys(measure for seeds in arms.values() for measure in seeds[0].values))
    by_arm = {row.arm: row for row in comparisons if row.evaluation == evaluation}
    caption = f"Sweep, {evaluation}" if evaluation else "Sweep"
    table = Table([*columns, *measures, "n", *(("difference", "p") if by_arm else ())], caption=caption)
    best = _best(arms, by_arm, measures[0])
    for key, seeds in arms.items():
        cells = [Cell(part.partition("=")[2], is_text=True) for part in key]
        for measure in measures:
            has_it = measure in seeds[0].values
            text = with_spread(*_system(seeds, measure).mean(measure)) if has_it else "–"
            cells.append(Cell(text, is_best=measure == measures[0] and best == key))
        cells.append(Cell(str(len(seeds[0].queries))))
        if by_arm:
            row = by_arm.get(key)
            cells += [
                Cell(f"{row.difference.mean:+.4f}" if row else "–"),
                Cell(format_p(row.p) if row else "–"),
            ]
        table.rows.append(Row(tuple(cells)))
    if by_arm:
        table.notes.append(
            f"n: queries. Difference and p: {measures[0]} against the first row (paired randomization test, "
            "Holm-corrected over the rows of all evaluations). Bold: the best, if its difference from the first row, or "
            "the first row's from all others, has p < .05."
        )
    if len(columns) < len(axes):
        table.notes.append("± is the standard deviation over seeds; tests use each query's mean over them.")
    return table


def _best(arms: Arms, by_arm: Mapping[Combination, ArmDifference], measure: str) -> Combination | None:
    """The arm with the highest mean, if significant."""
    compared = [key for key, seeds in arms.items() if measure in seeds[0].values]
    best = max(compared, key=lambda key: _system(arms[key], measure).mean(measure)[0])
    if best == next(iter(arms)):
        is_significant = len(by_arm) == len(arms) - 1 and all(row.p < 0.05 for row in by_arm.values())
    else:
        is_significant = best in by_arm and by_arm[best].p < 0.05
    return best if is_significant and len(arms) > 1 else None


def show_neighborhood_recall(
    labels: Mapping[Combination, Mapping[str, str]], root: Path
) -> list[dict[str, Any]]:
    """Show nb-recall by depth; a row for each combination and curve."""
    rows = []
    for combination, steps in labels.items():
        for artifact in (
            open_artifact(root / label) for label in steps.values() if is_artifact(root / label)
        ):
            if not (artifact.config.get("next_run") or "next_run" in artifact.inputs):
                continue
            read = read_json(artifact.part("curves.json"), Curves)
            for curve, values in read["curves"].items():
                if curve.startswith("nb-recall"):
                    at = dict(zip(read["depths"], values))
                    row = {"arm": ", ".join(part.partition("=")[2] for part in combination), "curve": curve}
                    rows.append({**row, **{f"@{depth}": at.get(depth) for depth in DEPTHS}})
    if rows:
        log.show_rows("nb-recall by depth", rows)
    return rows
