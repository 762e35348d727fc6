"""`qontext compare`: several systems on the same judgments, with significance tests."""

from __future__ import annotations

import dataclasses
import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from qontext.evaluation.evaluate import score, threshold
from qontext.frame import log
from qontext.frame.config import Input, Seed, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.stages import Report

if TYPE_CHECKING:
    from qontext.evaluation.comparison import Change, First, Pair, System

_ENDING = re.compile(r"(\.(trec|run|txt|tsv|res))?(\.(gz|zst|xz))?$")
_SHOWN = 160  # characters of a passage in the table of examples


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

    examples: Annotated[int, Field(ge=0)] = 5
    """Number of queries to show with the largest gains and losses between the first two systems, each with the first
    passage of every system."""

    permutations: Annotated[int, Field(ge=100)] = 10_000
    """Number of draws of the randomization test and of the bootstrap."""

    seed: Seed = 42
    """Random seed."""


def run(settings: CompareConfig) -> dict[str, Any]:
    from qontext.data.runs import read_run
    from qontext.evaluation import checks
    from qontext.evaluation.answers import is_questions
    from qontext.evaluation.comparison import System, compare_systems, largest_changes, side_by_side, tops
    from qontext.evaluation.datasets import load_judgments

    groups = [find_runs(text) for text in settings.runs]
    names = system_names([name for name, _ in groups], [paths for _, paths in groups])
    if len(groups) < 2:
        raise QontextError("a comparison needs at least two systems", remedy="Add another run.")
    if Path(settings.qrels).is_file() and is_questions(Path(settings.qrels)):
        raise QontextError(
            "contains questions with answers; compare needs judgments",
            place=settings.qrels,
            remedy="Evaluate each run with --out and pass the directories to qontext report, which compares them.",
        )
    judged = load_judgments(settings.qrels, split=settings.split)
    checks.note_grades(judged, settings.relevant)
    systems, first_runs, queries = [], [], []
    for name, (_, paths) in zip(names, groups):
        seeds = []
        for path in paths:
            checks.check_kinds(path, settings.qrels)
            results = read_run(path)
            checks.check_ids(results, judged.qrels, path, judged.place)
            scores, results = score(results, judged, settings.measures, settings.relevant)
            seeds.append(scores.values)
            queries = scores.queries
            if len(seeds) == 1:
                first_runs.append(results)
        systems.append(System(name, seeds))
    measures = list(systems[0].seeds[0])
    # The share of judged results is not a quality measure, so it is shown but not tested.
    tested = [measure for measure in measures if not measure.startswith("Judged")]
    pairs = compare_systems(systems, tested, permutations=settings.permutations, seed=settings.seed)
    firsts = [tops(results, judged.qrels, threshold(judged, settings.relevant)) for results in first_runs]
    values = [system.per_query(measures[0]) for system in systems]
    changes = largest_changes(queries, values[0], values[1], firsts[0], firsts[1], count=settings.examples)
    by_name = dict(zip(names, zip(values, firsts)))
    examples = side_by_side([change.query for change in changes], queries, by_name)
    folder = settings.data or (settings.qrels if Path(settings.qrels).is_dir() else None)
    texts = texts_of(folder, examples)
    _show(systems, measures, pairs)
    if examples:
        log.show_rows("The largest gains and losses", example_rows(examples, measures[0], texts))
    return {
        "queries": len(queries),
        "benchmark": judged.benchmark.name if judged.benchmark else None,
        "systems": [_system_row(system, measures) for system in systems],
        "pairs": [dataclasses.asdict(pair) for pair in pairs],
        "examples": [
            dataclasses.asdict(change)
            | _example_texts(change, texts)
            | {"first": examples_as_json(examples[change.query], texts)}
            for change in changes
        ],
    }


def find_runs(text: str) -> tuple[str, list[str]]:
    """``NAME=PATHS`` → its name (may be empty) and the runs: one, or one per seed."""
    name, sign, rest = text.partition("=")
    if not sign or Path(text).exists():
        name, rest = "", text
    paths = []
    for part in rest.split(","):
        path = Path(part).expanduser()
        paths += sorted(map(str, Path(path.anchor).glob(str(path.relative_to(path.anchor))))) or [part]
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


Texts = tuple[dict[str, str], dict[str, str]]
"""The texts of queries and of passages."""


def texts_of(data: str | None, examples: Mapping[str, Sequence[First]]) -> Texts:
    """The texts of the examples' queries and passages, from a labeled folder."""
    from qontext.data.collection import read_passages, read_queries

    if data is None or not examples:
        return {}, {}
    ids = {first.passage for row in examples.values() for first in row}
    passages = {p.id: " — ".join(filter(None, (p.title, p.text))) for p in read_passages(data) if p.id in ids}
    return read_queries(data), passages


def examples_as_json(row: Sequence[First], texts: Texts) -> list[dict[str, Any]]:
    """The first passages of all systems for a query, with their texts."""
    return [dataclasses.asdict(first) | {"text": texts[1].get(first.passage or "")} for first in row]


def _example_texts(change: Change, texts: Texts) -> dict[str, str | None]:
    queries, passages = texts
    return {
        "query_text": queries.get(change.query),
        "text_a": passages.get(change.top_a or ""),
        "text_b": passages.get(change.top_b or ""),
    }


def _system_row(system: System, measures: Sequence[str]) -> dict[str, Any]:
    means = {measure: system.mean(measure) for measure in measures}
    return {
        "system": system.name,
        "seeds": len(system.seeds),
        "measures": {measure: mean for measure, (mean, _) in means.items()},
        "spread": {measure: sd for measure, (_, sd) in means.items() if sd is not None},
    }


def _show(
    systems: Sequence[System],
    measures: Sequence[str],
    pairs: Sequence[Pair],
) -> None:
    log.show_rows(
        "Means" + (" ± standard deviation over seeds" if any(len(s.seeds) > 1 for s in systems) else ""),
        [{"system": s.name} | {m: with_spread(*s.mean(m)) for m in measures} for s in systems],
    )
    log.show_rows(
        "Differences (p of the paired randomization test, Holm-corrected for the rows of a measure)",
        [
            {
                "measure": pair.measure,
                "from → to": f"{pair.a} → {pair.b}",
                "difference": f"{pair.difference.mean:+.4f}",
                "95 % interval": f"{pair.difference.low:+.4f} … {pair.difference.high:+.4f}",
                "p": format_p(pair.p) + (" *" if pair.is_significant() else ""),
                "wins/losses/ties": f"{pair.difference.wins}/{pair.difference.losses}/{pair.difference.ties}",
            }
            for pair in pairs
        ],
    )


def example_rows(examples: Mapping[str, Sequence[First]], measure: str, texts: Texts) -> list[dict[str, Any]]:
    """A row for each query and system: its value, and its first passage, marked if relevant."""
    queries, passages = texts
    rows = []
    for query, row in examples.items():
        heading = queries.get(query, query)
        for first in row:
            text = "no results" if first.passage is None else passages.get(first.passage, first.passage)
            rows.append(
                {
                    "query": heading,
                    "system": first.system,
                    measure: f"{first.value:.3f}",
                    "": "✓" if first.right else "✗",
                    "first_passage": textwrap.shorten(text, _SHOWN, placeholder=" …"),
                }
            )
            heading = ""
    return rows


def with_spread(mean: float, spread: float | None) -> str:
    return f"{mean:.4f}" if spread is None else f"{mean:.4f} ± {spread:.4f}"


def format_p(p: float) -> str:
    return "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 1 else "1"


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
