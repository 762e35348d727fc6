"""`qontext report`: the results of experiments as one self-contained HTML page.

It has the verdict, the means of all systems beside published ones, their differences, examples and plots.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from qontext import __version__
from qontext.evaluation import plots
from qontext.evaluation.compare import system_names
from qontext.evaluation.evaluate import as_scored, per_query
from qontext.evaluation.tables import Cell, Plot, ReportBlock, Row, Table, to_page
from qontext.frame import artifacts
from qontext.frame.artifacts import META, Artifact, Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError, choose
from qontext.frame.files import damaged
from qontext.frame.inputs import places
from qontext.frame.stages import Stage

if TYPE_CHECKING:
    from qontext.evaluation.benchmarks import Benchmark
    from qontext.evaluation.comparison import Pair, SystemScores
    from qontext.evaluation.measures import Floats

GENERATED = "generated"
"""The split of `holdout` whose queries were generated."""
CAVEAT = (
    "These questions were generated from the passages and share more words with them than real questions do. "
    "They favor BM25 and encoders trained on similar questions."
)
_SEED = re.compile(r"--(?:[\w-]+\.)?seed=\d+|[-_./]?seed[-_]?\d+", re.IGNORECASE)
_ENDS = re.compile(r"^(evaluate|evaluation|scores?)[-_.]+|[-_.](evaluate|evaluation|scores?)$")
_MOST_DIFFERENCES = 24  # rows; with more, only those of the main measure are shown


class ReportConfig(StageConfig):
    runs: Annotated[tuple[str, ...], Input(positional=True)]
    """Output directories of `evaluate`, or folders with such directories (such as the output of `qontext run`).
    Systems scored on the same judgments are in one table; the first one is the baseline of the plots.
    Directories that differ only in a seed (…-seed1, …-seed2, or --seed=1 as named by `sweep`) are one
    system."""

    label: tuple[str, ...] = ()
    """Display name of a system, as NAME=LABEL; may be repeated. These systems come first, in this order, so
    the first one is the baseline of all differences."""

    opening: tuple[str, ...] = ()
    """Introductory text of the report; the first paragraph is shown in bold."""

    recommended: str | None = None
    """Display name of the recommended system. It is marked in the tables; plots and examples are of it instead of the
    best system."""

    title: str | None = None
    """Title of the report. Default: the names of the directories."""

    data: Annotated[str | None, Input()] = None
    """A folder in BEIR's layout with the texts: adds the queries with the largest gains and losses, with the
    first results of the baseline and the best system."""


@dataclass(frozen=True, eq=False)
class Section:
    """The systems that were scored on the same judgments."""

    place: str
    split: str  # which judgments, where the place is a folder
    benchmark: Benchmark | None
    queries: list[str]
    systems: list[SystemScores]
    runs: dict[str, str]  # system → path of its (first) run
    is_partial: bool  # only a part of the benchmark's passages was searched
    relevant: int  # the lowest grade that counts

    @property
    def measures(self) -> list[str]:
        return list(self.systems[0].seeds[0])

    @property
    def title(self) -> str:
        if self.benchmark:
            return self.benchmark.name
        parent = Path(self.place).parent
        if artifacts.is_artifact(parent) and artifacts.open_artifact(parent).verb == "holdout":
            return "Generated questions" if self.split == GENERATED else f"Real questions ({self.split})"
        return Path(self.place).stem.removesuffix(".tsv") or self.place

    def pair(self, recommended: str | None) -> tuple[str, str]:
        """The baseline (the first system) and the recommended one, or the best of the others by the main measure. If the
        baseline is recommended, the best of the others and the baseline."""
        first, *others = self.systems
        best = max(others, key=lambda system: system.mean(self.measures[0])[0]).name
        if recommended == first.name:
            return best, first.name
        return first.name, recommended if recommended in {s.name for s in others} and recommended else best


def run(settings: ReportConfig, work: Workdir) -> dict[str, Any]:
    sections = gather(settings.runs, dict(_label(text) for text in settings.label))
    if settings.recommended is not None:
        shown = [system.name for section in sections for system in section.systems]
        choose(settings.recommended, shown, "system in --recommended")
    blocks = [ReportBlock("Verdict", list(settings.opening), is_lead=True)] if settings.opening else []
    for number, section in enumerate(sections, start=1):
        blocks += _blocks(section, f"s{number}", settings.data, settings.recommended)
    title = settings.title or ", ".join(dict.fromkeys(Path(d).resolve().name for d in settings.runs))
    with work.write("report.html") as path:
        path.write_text(to_page(title, f"qontext {__version__}", blocks), encoding="utf-8")
    return {
        "page": str(work.path / "report.html"),
        "judgments": len(sections),
        "systems": sum(len(section.systems) for section in sections),
    }


def _label(text: str) -> tuple[str, str]:
    name, sign, label = text.rpartition("=")  # names may contain the sign, as those of a sweep
    if not sign or not name or not label:
        raise QontextError(f"cannot read the label {text!r}", remedy="Write NAME=LABEL.")
    return name, label


def gather(directories: Sequence[str], labels: Mapping[str, str] | None = None) -> list[Section]:
    """Group the evaluations in the directories by their judgments; those that differ only in a seed are one system. Real
    queries come before generated ones, systems with labels before others, in their order."""
    found = {path.resolve(): path for directory in directories for path in _artifacts(Path(directory))}
    opened = (artifacts.open_artifact(path) for path in found.values())
    groups: dict[str, list[Artifact]] = {}
    for evaluation in (one for one in opened if one.verb == "evaluate"):
        settings = {name: value for name, value in evaluation.config.items() if name != "measures"}
        measures = list(per_query(evaluation)[1])
        same = json.dumps([evaluation.inputs["qrels"]["digest"], settings, measures], sort_keys=True)
        groups.setdefault(same, []).append(evaluation)
    if not groups:
        raise QontextError("nothing to report: no evaluation in it", place=", ".join(directories))
    named = sorted({name for group in groups.values() for name in _names(group)})
    for name in labels or {}:
        choose(name, named, "system in --label")
    sections = [_section(group, labels or {}) for group in groups.values()]
    return sorted(sections, key=lambda section: section.split == GENERATED)


def _artifacts(root: Path) -> Iterator[Path]:
    """The finished artifacts at or below a directory."""
    if not root.is_dir():
        raise QontextError("no such directory", place=root)
    if (root / META).is_file():
        yield root
    else:
        for path in sorted(path for path in root.iterdir() if path.is_dir()):
            yield from _artifacts(path)


def _section(group: Sequence[Artifact], labels: Mapping[str, str]) -> Section:
    from qontext.evaluation.benchmarks import BENCHMARKS
    from qontext.evaluation.comparison import SystemScores

    order = {name: number for number, name in enumerate(labels)}
    named = sorted(zip(_names(group), group), key=lambda one: order.get(one[0], len(order)))
    shown = {name: labels.get(name, name) for name, _ in named}
    if len(set(shown.values())) < len(shown):
        raise QontextError("two systems have the same name", remedy="Pass another --label.")
    first, (queries, _) = named[0][1], per_query(named[0][1])
    seeds: dict[str, list[dict[str, Floats]]] = {}
    runs: dict[str, str] = {}
    for name, evaluation in ((shown[name], evaluation) for name, evaluation in named):
        own, values = per_query(evaluation)
        if own != queries:  # the same judgments are in the same order
            raise damaged(
                evaluation.path / "queries.parquet", f"its queries differ from those of {first.path}"
            )
        seeds.setdefault(name, []).append(values)
        runs.setdefault(name, _place(evaluation, "run"))
    benchmark = BENCHMARKS.get(first.summary.get("benchmark") or "")
    return Section(
        place=_place(first, "qrels"),
        split=str(first.config.get("split", "test")),
        benchmark=benchmark,
        queries=queries,
        systems=[SystemScores(name, of_seeds) for name, of_seeds in seeds.items()],
        runs=runs,
        is_partial=benchmark is not None
        and any((_searched(run) or benchmark.passages) < 0.99 * benchmark.passages for run in runs.values()),
        relevant=first.config.get("relevant") or (benchmark.relevant if benchmark else 1),
    )


def _names(group: Sequence[Artifact]) -> list[str]:
    """The name of each evaluation's system. Those of one system, with several seeds, have the same."""
    full = system_names([""] * len(group), [[str(evaluation.path)] for evaluation in group])
    plain = ["/".join(filter(None, (_ENDS.sub("", part) for part in name.split("/")))) for name in full]
    # Names of systems are unique: only seeds are merged.
    names = [without_seed(name) or name for name in (plain if len({*plain}) == len(full) else full)]
    if all(name.endswith(ending := f"-{group[0].config.get('split', 'test')}") for name in names):
        names = [name.removesuffix(ending) or name for name in names]
    return [name.replace("--", ", ") if "=" in name else name for name in names]


def without_seed(name: str) -> str:
    """``pretrain--context=query--seed=1`` → ``pretrain--context=query``."""
    return _SEED.sub("", name)


def _searched(run: str) -> int | None:
    """The number of passages in the search of a run, if known."""
    if not artifacts.is_artifact(run):
        return None
    search = artifacts.open_artifact(run)
    count = search.summary.get("passages")
    if count is None and "index" in search.inputs and artifacts.is_artifact(index := _place(search, "index")):
        summary = artifacts.open_artifact(index).summary
        count = summary.get("passages", summary.get("texts"))
    return None if count is None else int(count)


def _place(artifact: Artifact, name: str) -> str:
    """The current path of the artifact's input; its recorded path, if it is missing."""
    original = str(artifact.inputs[name]["path"])
    there = [place for place in places(artifact.inputs[name], artifact.path) if place.exists()]
    return original if not there or Path(original) in there else str(there[0])


def _blocks(section: Section, prefix: str, data: str | None, recommended: str | None) -> list[ReportBlock]:
    """The means of all systems, the differences between them, and examples."""
    from qontext.evaluation.comparison import bootstrap_interval, compare_systems

    main = section.measures[0]
    pairs = compare_systems(section.systems, [m for m in section.measures if not m.startswith("Judged")])
    columns = {system.name: system.per_query(main) for system in section.systems}
    spans = {name: (float(v.mean()), *bootstrap_interval(v)) for name, v in columns.items()}
    caption = f"Mean {main} of each system with its confidence interval"
    is_generated = section.split == GENERATED and not section.benchmark
    means = ReportBlock(
        section.title,
        text=[CAVEAT] if is_generated else [],
        tables=[results_table(section, pairs, recommended)],
        plots=[Plot(f"{prefix}-means", plots.intervals(spans, main), caption)],
    )
    if not pairs:  # one system, or Judged@k alone, which is not tested
        return [means]
    tables = [
        differences_table(section, pairs),
        *([] if data is None else _examples(section, data, recommended)),
    ]
    return [means, ReportBlock(f"Differences on {section.title}", tables=tables)]


def results_table(section: Section, pairs: Sequence[Pair], recommended: str | None = None) -> Table:
    """The means of the systems below published ones, if they are comparable."""
    from qontext.evaluation.benchmarks import rows_for
    from qontext.evaluation.comparison import means_table

    caption = f"Results on {section.title}, n = {len(section.queries):,}, × 100"
    table = means_table(section.systems, pairs, section.measures, caption)
    for number, system in enumerate(section.systems):
        if system.name == recommended:
            name, *means = table.rows[number].cells
            marked = replace(name, text=f"{name.text} (recommended)", is_best=True)
            table.rows[number] = replace(table.rows[number], cells=(marked, *means))
    table.notes.insert(0, "A query without results scores 0.")
    if section.benchmark is None:
        return table
    if section.is_partial:
        table.notes.append(
            "Only a part of the passages was searched, so published results are not comparable."
        )
        return table
    published = [(row, row.figures[section.title]) for row in rows_for(section.benchmark.name)]
    published = [(row, figures) for row, figures in published if figures.keys() & {*section.measures}]
    if published:
        others = [
            Row((Cell(row.system), *(Cell(f"{of[m]:.1f}" if m in of else "–") for m in section.measures)))
            for row, of in published
        ]
        table.rows = [Row(heading="Published"), *others, Row(heading="Measured here"), *table.rows]
        table.notes.append(
            f"Published results are for the whole collection of {section.benchmark.passages:,} passages. "
            f"From: {'; '.join(dict.fromkeys(row.source for row, _ in published))}."
        )
    return table


def differences_table(section: Section, pairs: Sequence[Pair]) -> Table:
    """Differences of pairs of systems, with interval, corrected p, wins, losses and ties."""
    from qontext.evaluation.comparison import format_p

    table = Table(
        ["Systems", "Measure", "Difference", "p", "95 % interval", "Wins / losses / ties"],
        caption=f"Differences on {section.title}, n = {len(section.queries):,}, × 100",
        notes=[
            "Intervals: bootstrap over queries. p: corrected, as above; bold where p < .05. "
            "A positive difference, and a win on a query, are in favor of the second system."
        ],
    )
    for pair in pairs:
        if len(pairs) <= _MOST_DIFFERENCES or pair.measure == section.measures[0]:
            d = pair.difference
            cells = (
                Cell(f"{pair.a} → {pair.b}"),
                Cell(pair.measure, is_text=True),
                Cell(_signed(d.mean), is_best=pair.is_significant()),
                Cell(format_p(pair.p)),
                Cell(f"{_signed(d.low)} … {_signed(d.high)}"),
                Cell(f"{d.wins:,} / {d.losses:,} / {d.ties:,}"),
            )
            table.rows.append(Row(cells))
    return table


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")


def _examples(section: Section, data: str, recommended: str | None) -> list[Table]:
    """A table of the queries that differ most between two systems; none for questions with answers."""
    from qontext.data.runs import read_run
    from qontext.evaluation.answers import is_questions
    from qontext.evaluation.benchmarks import load_judgments
    from qontext.evaluation.comparison import example_rows, examples_of, tops

    if is_questions(section.place):
        return []
    names, main = section.pair(recommended), section.measures[0]
    judged = load_judgments(section.place, split=section.split)
    firsts = {
        n: tops(as_scored(read_run(section.runs[n]), judged), judged.qrels, section.relevant) for n in names
    }
    values = {system.name: system.per_query(main) for system in section.systems}
    examples = examples_of(section.queries, {name: values[name] for name in names}, firsts, data)
    table = Table(
        ["Query", "System", main, "", "First passage"],
        caption=f"Queries with the largest gains and losses from {names[0]} to {names[1]}",
        is_prose=True,
    )
    for row in example_rows(examples, main):
        query, system, value, mark, text = row.values()
        cells = (Cell(query), Cell(system, is_text=True), Cell(value), Cell(mark), Cell(text, is_text=True))
        table.rows.append(Row(cells, is_new=bool(query)))
    return [table] if examples else []


STAGE = Stage(
    verb="report",
    config=ReportConfig,
    run=run,
    examples="""
        qontext report runs/recipe --out report
        qontext report bm25-scores dense-scores --data data --out report
    """,
)
