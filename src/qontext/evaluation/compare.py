"""`qontext compare`: several systems on the same judgments: means, differences with their significance, and the first
passages for the queries on which two of them differ most."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from qontext.evaluation.evaluate import judgments, note_grades, scored_run, threshold
from qontext.frame import log
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.files import StrPath
from qontext.frame.stages import Report

if TYPE_CHECKING:
    from qontext.data.collection import Qrels
    from qontext.data.load import AnyRun
    from qontext.evaluation.comparison import Comparison

_ENDING = re.compile(r"(\.(trec|run|txt|tsv|res))?(\.(gz|zst|xz))?$")


class CompareConfig(StageConfig):
    runs: Annotated[tuple[str, ...], Input(positional=True)]
    """Two or more systems: a run file or search directory each. For several seeds of one system, use a
    pattern ("seed*/search") or paths separated by commas. NAME=PATH sets the system's name in the tables."""

    qrels: Annotated[str, Input()]
    """Judgments: a qrels file, a folder in BEIR's layout, or the name of a benchmark."""

    split: str = "test"
    """Split of the judgments of a folder in BEIR's layout."""

    measures: str = ""
    """Measures to compare, such as "MRR@10 nDCG@10"; the first one also orders the examples. Default: the
    usual ones for the benchmark."""

    relevant: Annotated[int | None, Field(ge=1)] = None
    """Minimum relevant grade for all measures except nDCG. Default: 1, or 2 for TREC DL."""

    data: Annotated[str | None, Input()] = None
    """A folder in BEIR's layout with the texts of queries and passages for the examples. Default: the folder
    of --qrels."""

    table: Literal["plain", "markdown", "latex"] = "plain"
    """Print the means, with letters for the systems that each one beats, as a table for Markdown or LaTeX."""


def run(settings: CompareConfig) -> dict[str, Any]:
    from qontext.evaluation.tables import to_latex, to_markdown

    comparison = compare(
        settings.runs, settings.qrels, settings.measures, split=settings.split, relevant=settings.relevant,
        data=settings.data,
    )  # fmt: skip
    if settings.table == "plain":
        _show(comparison)
    elif log.is_shown():
        with log.results():
            print((to_markdown if settings.table == "markdown" else to_latex)(comparison.table()))
    return comparison.as_json()


def compare(
    runs: Mapping[str, AnyRun | Sequence[AnyRun]] | Sequence[StrPath],
    qrels: Qrels | StrPath,
    measures: str | Sequence[str] = (),
    *,
    split: str = "test",
    relevant: int | None = None,
    data: StrPath | None = None,
) -> Comparison:
    """Test the difference of every two systems on every measure.

    Each `Pair` has the mean difference, its bootstrap interval and the p value of a paired randomization test,
    corrected by Holm's procedure for all pairs of systems, for each measure by itself.

    Args:
        runs: System name → run, as for `evaluate`, or a list of runs, one for each training seed. Or a list of paths, as on
            the command line: run files or output directories of a search, ``NAME=PATH`` to name one.
        qrels, measures, split, relevant: As for `evaluate`.
        data: A folder in BEIR's layout with the texts of the examples. Default: the folder of `qrels`.

    >>> qrels = {f"q{n}": {"p": 1} for n in range(8)}
    >>> best = Run.of([Hit(query, "p", 1.0) for query in qrels])
    >>> worse = Run.of([Hit(query, id, score) for query in qrels for id, score in (("other", 2.0), ("p", 1.0))])
    >>> (pair,) = compare({"worse": worse, "best": best}, qrels, "MRR@10")
    >>> pair
    Pair(MRR@10: worse → best +0.5000, p .008)
    >>> pair.a, pair.b, pair.difference.mean, pair.is_significant()
    ('worse', 'best', 0.5, True)
    """
    from qontext.evaluation.comparison import Comparison, SystemScores, compare_systems, tops

    groups = _groups(runs)
    judged = judgments(qrels, split)
    note_grades(judged, relevant)
    systems, firsts, queries = [], [], []
    for name, own in groups.items():
        scored = [scored_run(one, name, judged, measures, relevant) for one in own]
        systems.append(SystemScores(name, [scores.values for scores, _ in scored]))
        firsts.append(tops(scored[0][1], judged.qrels, threshold(judged, relevant)))
        queries = scored[0][0].queries
    # The share of judged results is not a quality measure, so it is shown but not tested.
    tested = [measure for measure in systems[0].seeds[0] if not measure.startswith("Judged")]
    folder = data or (qrels if isinstance(qrels, str | os.PathLike) and Path(qrels).is_dir() else None)
    return Comparison(
        systems,
        compare_systems(systems, tested),
        queries,
        firsts,
        judged.benchmark.name if judged.benchmark else None,
        None if folder is None else os.fspath(folder),
    )


def _groups(
    runs: Mapping[str, AnyRun | Sequence[AnyRun]] | Sequence[StrPath],
) -> dict[str, list[AnyRun]]:
    """System → its runs, one for each training seed."""
    groups: dict[str, list[AnyRun]]
    if isinstance(runs, Mapping):
        groups = {
            name: [one] if isinstance(one, Mapping | str | os.PathLike) else [*one]
            for name, one in runs.items()
        }
    else:
        found = [find_runs(os.fspath(text)) for text in runs]
        names = system_names([name for name, _ in found], [paths for _, paths in found]) if found else []
        groups = {name: [*paths] for name, (_, paths) in zip(names, found)}
    if len(groups) < 2 or not all(groups.values()):
        raise QontextError("a comparison needs at least two systems, each with a run")
    return groups


def find_runs(text: str) -> tuple[str, list[str]]:
    """``NAME=PATHS`` → its name (may be empty) and the runs: one, or one per seed."""
    name, sign, rest = text.partition("=")
    if not sign or os.path.exists(text):  # noqa: PTH110
        name, rest = "", text
    paths = []
    for part in [rest] if os.path.exists(rest) else filter(None, rest.split(",")):  # noqa: PTH110
        path = Path(part).expanduser()
        anchor = Path(path.anchor)
        found = [] if path.exists() else sorted(map(str, anchor.glob(str(path.relative_to(anchor)))))
        paths += found or [part]
    return name, paths


def system_names(own_names: Sequence[str], paths: Sequence[Sequence[str]]) -> list[str]:
    """Names for the tables: explicit names, else the distinguishing part of the paths.

    runs/x/search and runs/y/search are x and y.
    """
    parts = [Path(_ENDING.sub("", runs[0])).parts for runs in paths]
    longest = max(map(len, parts))
    most = longest - 1 if len(parts) > 1 else 0
    for end, length in itertools.product(range(most, -1, -1), range(1, longest + 1)):
        shared = {p[len(p) - end :] for p in parts} if end < min(map(len, parts)) else set()
        if len(shared) == 1:  # the last `end` parts are the same everywhere
            names = [name or "/".join(p[: len(p) - end][-length:]) for name, p in zip(own_names, parts)]
            if len(set(names)) == len(names):
                return names
    raise QontextError("two of the systems have the same name", remedy="Use NAME=PATH to distinguish them.")


def _show(comparison: Comparison) -> None:
    from qontext.evaluation.comparison import example_rows

    several = any(len(system.seeds) > 1 for system in comparison.systems)
    log.show_rows("Means" + (" ± standard deviation over seeds" if several else ""), comparison.mean_rows())
    log.show_rows(
        "Differences (p of the paired randomization test, Holm-corrected for the rows of a measure)",
        [pair.row() for pair in comparison],
    )
    if comparison.examples:
        log.show_rows(
            "The largest gains and losses", example_rows(comparison.examples, comparison.measures[0])
        )


COMPARE = Report(
    verb="compare",
    config=CompareConfig,
    run=run,
    examples="""
        qontext compare bm25.trec dense.trec --qrels data
        qontext compare "base=runs/base-seed*/search" "ours=runs/ours-seed*/search" --qrels data
        qontext compare bm25.trec dense.trec run.trec --qrels data --measures "nDCG@10 R@100" --json
    """,
)
