"""The table of a sweep: a row per arm, averaged over seeds, with the difference from the first arm and its
significance; and the nb-recall of the arms by depth, how much of the next stage's first results each run contains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qontext.evaluation.comparison import Difference, SystemScores, difference, format_p, holm, with_spread
from qontext.evaluation.evaluate import Curves, per_query
from qontext.evaluation.measures import Floats
from qontext.evaluation.tables import Cell, Row, Table, to_csv
from qontext.frame import log
from qontext.frame.artifacts import Artifact, Workdir, is_artifact, open_artifact
from qontext.frame.files import read_json
from qontext.workflow.scores import aligned

Combination = tuple[str, ...]
"""One value per grid setting, as written: ("pretrain.steps=2000", "finetune.lr=1e-5")."""


@dataclass(frozen=True, eq=False)
class ArmScores:
    """The scores of a combination: measure → [Q] a value per query, and the queries of each."""

    values: Mapping[str, Floats]
    queries: Mapping[str, Sequence[str]]
    main: Sequence[str]  # the first measure of every evaluation

    @property
    def means(self) -> dict[str, float]:
        return {measure: float(values.mean()) for measure, values in self.values.items()}


@dataclass(frozen=True)
class ArmDifference:
    """The difference of an arm from the first one on a measure; `p` is Holm-corrected over all of them."""

    arm: Combination
    measure: str
    queries: int
    difference: Difference
    p: float

    def as_json(self) -> dict[str, Any]:
        d = self.difference
        return {
            "settings": dict(part.split("=", 1) for part in self.arm),
            "measure": self.measure,
            "queries": self.queries,
            "difference": d.mean,
            "low": d.low,
            "high": d.high,
            "p": self.p,
        }


def read_scores(
    labels: Mapping[Combination, Mapping[str, str]], root: Path
) -> list[tuple[Combination, ArmScores]]:
    """The scores of every combination. If one has several evaluations, measures are prefixed with the step."""
    evaluations_of = {
        combination: {
            name: artifact
            for name, label in steps.items()
            if is_artifact(root / label) and (artifact := open_artifact(root / label)).verb == "evaluate"
        }
        for combination, steps in labels.items()
    }
    several = any(len(evaluations) > 1 for evaluations in evaluations_of.values())
    return [
        (combination, _scores(evaluations, several)) for combination, evaluations in evaluations_of.items()
    ]


def _scores(evaluations: Mapping[str, Artifact], several: bool) -> ArmScores:
    values: dict[str, Floats] = {}
    queries: dict[str, Sequence[str]] = {}
    main = []
    for name, artifact in evaluations.items():
        own, columns = per_query(artifact)
        prefix = f"{name}: " if several else ""
        values |= {prefix + measure: column for measure, column in columns.items()}
        queries |= {prefix + measure: own for measure in columns}
        main.append(prefix + next(iter(columns)))
    return ArmScores(values, queries, main)


def arms_of(cells: Sequence[tuple[Combination, ArmScores]]) -> dict[Combination, list[ArmScores]]:
    """Combination without its seeds → the scores of every seed."""
    arms: dict[Combination, list[ArmScores]] = {}
    for combination, scores in cells:
        key = tuple(part for part in combination if not is_seed(part.partition("=")[0]))
        arms.setdefault(key, []).append(scores)
    return arms


def is_seed(setting: str) -> bool:
    return setting.rpartition(".")[2] == "seed"


def compare_arms(arms: Mapping[Combination, Sequence[ArmScores]]) -> list[ArmDifference]:
    """Every arm against the first on the main measures, by each query's mean over seeds.

    Arms scored on different queries than the first are skipped.
    """
    (_, first), *others = arms.items()
    rows = []
    for key, seeds in others:
        for measure in first[0].main:
            queries = first[0].queries[measure]
            if all(scores.queries.get(measure) == queries for scores in (*first, *seeds)):
                a, b = (_system(s, measure).per_query(measure) for s in (first, seeds))
                rows.append((key, measure, len(queries), difference(a, b)))
    corrected = holm([row[3].p for row in rows])
    return [ArmDifference(*row, p) for row, p in zip(rows, corrected)]


def _system(seeds: Sequence[ArmScores], measure: str) -> SystemScores:
    return SystemScores("", [{measure: scores.values[measure]} for scores in seeds])


def ablation_tables(
    axes: Sequence[str],
    arms: Mapping[Combination, Sequence[ArmScores]],
    comparisons: Sequence[ArmDifference],
) -> list[Table]:
    """A table for each evaluation, with the arms that have it."""
    evaluations = dict.fromkeys(_evaluation(m) for seeds in arms.values() for m in seeds[0].values)
    tables = []
    for name in evaluations:
        own = {key: [_only(scores, name) for scores in seeds] for key, seeds in arms.items()}
        rows = [
            replace(c, measure=_measure(c.measure)) for c in comparisons if _evaluation(c.measure) == name
        ]
        table = ablation_table(axes, {key: seeds for key, seeds in own.items() if seeds[0].values}, rows)
        table.caption += f", {name}" if name else ""
        tables.append(table)
    return tables


def _evaluation(measure: str) -> str:
    """The step that a measure is prefixed with; empty if there is one evaluation."""
    return measure.rpartition(": ")[0]


def _measure(measure: str) -> str:
    return measure.rpartition(": ")[2]


def _only(scores: ArmScores, evaluation: str) -> ArmScores:
    """The scores of one evaluation, without its name."""
    return ArmScores(
        {_measure(m): values for m, values in scores.values.items() if _evaluation(m) == evaluation},
        {_measure(m): queries for m, queries in scores.queries.items() if _evaluation(m) == evaluation},
        [_measure(m) for m in scores.main if _evaluation(m) == evaluation],
    )


def ablation_table(
    axes: Sequence[str],
    arms: Mapping[Combination, Sequence[ArmScores]],
    comparisons: Sequence[ArmDifference],
) -> Table:
    """A row per arm. The best is bold where it differs significantly from the first arm; the first, from all others."""
    columns = [name for name in axes if not is_seed(name)]
    main = next(iter(arms.values()))[0].main[0]
    measures = list(dict.fromkeys(measure for seeds in arms.values() for measure in seeds[0].values))
    table = Table([*columns, *measures, "n", *(("difference", "p") if comparisons else ())], caption="Sweep")
    best = _best(arms, comparisons, main)
    by_arm = {row.arm: row for row in comparisons}
    for key, seeds in arms.items():
        cells = [Cell(part.partition("=")[2], is_text=True) for part in key]
        for measure in measures:
            has_it = measure in seeds[0].values
            text = with_spread(*_system(seeds, measure).mean(measure)) if has_it else "–"
            cells.append(Cell(text, is_best=measure == main and best == key))
        cells.append(Cell(str(len(seeds[0].queries[seeds[0].main[0]]))))
        if comparisons:
            cells += _difference_cells(by_arm.get(key))
        table.rows.append(Row(tuple(cells)))
    if comparisons:
        table.notes.append(
            f"n: queries. Difference and p: {main} against the first row (paired randomization test, Holm-corrected "
            "over the rows of all evaluations). Bold: the best, if its difference from the first row, or the first "
            "row's from all others, has p < .05."
        )
    if len(columns) < len(axes):
        table.notes.append("± is the standard deviation over seeds; tests use each query's mean over them.")
    return table


def _difference_cells(row: ArmDifference | None) -> list[Cell]:
    if row is None:
        return [Cell("–"), Cell("–")]
    return [Cell(f"{row.difference.mean:+.4f}"), Cell(format_p(row.p))]


def _best(
    arms: Mapping[Combination, Sequence[ArmScores]], comparisons: Sequence[ArmDifference], measure: str
) -> Combination | None:
    """The arm with the highest mean, if significant."""
    compared = [key for key, seeds in arms.items() if measure in seeds[0].values]
    best = max(compared, key=lambda key: _system(arms[key], measure).mean(measure)[0])
    first = next(iter(arms))
    rows = [row for row in comparisons if row.measure == measure]
    if best == first:
        is_significant = len(rows) == len(arms) - 1 and all(row.p < 0.05 for row in rows)
    else:
        is_significant = any(row.arm == best and row.p < 0.05 for row in rows)
    return best if is_significant and len(arms) > 1 else None


SHOWN = (50, 100, 200, 500, 1000)
"""The depths in the table; curves.csv has all."""


def show_neighborhood_recall(
    labels: Mapping[Combination, Mapping[str, str]], root: Path, work: Workdir
) -> list[dict[str, Any]]:
    """Show nb-recall by depth, and write it to curves.csv; a row for each combination, curve and depth."""
    rows = []
    for combination, steps in labels.items():
        name = ", ".join(part.partition("=")[2] for part in combination)
        artifacts = [open_artifact(root / label) for label in steps.values() if is_artifact(root / label)]
        for evaluation in (
            one for one in artifacts if one.config.get("next_run") or "next_run" in one.inputs
        ):
            read = read_json(evaluation.part("curves.json"), Curves)
            rows += [
                {"arm": name, "curve": curve, "depth": depth, "value": value}
                for curve, values in read["curves"].items()
                if curve.startswith("nb-recall")
                for depth, value in zip(read["depths"], values)
            ]
    if rows:
        work.write_text("curves.csv", to_csv(list(rows[0]), [list(row.values()) for row in rows]))
        log.show_rows("nb-recall by depth", _table(rows))
    return rows


def _table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each arm and curve."""
    table: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["depth"] in SHOWN:
            key = row["arm"], row["curve"]
            table.setdefault(key, {"arm": key[0], "curve": key[1]})[f"@{row['depth']}"] = (
                f"{row['value']:.3f}"
            )
    return aligned(list(table.values()))
