"""The contents of a report in order: blocks of text, tables and figures."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qontext.data.collection import Passage, read_passages, read_queries
from qontext.data.runs import read_run
from qontext.evaluation import plots
from qontext.evaluation.answers import is_questions
from qontext.evaluation.comparison import Pair, bootstrap_interval, compare_systems
from qontext.evaluation.datasets import load_judgments
from qontext.evaluation.evaluate import as_scored
from qontext.evaluation.gather import GENERATED, Facts, Losses, Section, TrainingLosses, without_seed
from qontext.evaluation.results import differences_table, marked, results_table
from qontext.evaluation.side_by_side import largest_changes, tops
from qontext.evaluation.tables import Cell, Row, Table
from qontext.frame import log
from qontext.frame.artifacts import Artifact

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CAVEAT = (
    "These questions were generated from the passages and share more words with them than real questions do. "
    "They favor BM25 and encoders trained on similar questions."
)
_SHOWN = 220  # characters of a passage among the examples


@dataclass(frozen=True, eq=False)
class Plot:
    """A figure with its file name and caption."""

    name: str
    figure: Figure
    caption: str

    @cached_property
    def svg(self) -> bytes:
        return plots.svg_bytes(self.figure, self.name)


@dataclass
class ReportBlock:
    """A piece of the report under one heading."""

    heading: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    is_lead: bool = False  # its text is main content, not a note
    details: list[tuple[str, str]] = field(default_factory=list)  # (summary, preformatted text)


@dataclass
class Contents:
    """The complete report, and its raw numbers for the CSV files."""

    blocks: list[ReportBlock] = field(default_factory=list)
    results: list[list[Any]] = field(default_factory=list)
    differences: list[list[Any]] = field(default_factory=list)


RESULT_COLUMNS = (
    "judgments",
    "system",
    "measure",
    "mean",
    "sd_over_seeds",
    "low",
    "high",
    "queries",
    "seeds",
)
DIFFERENCE_COLUMNS = (
    *("judgments", "measure", "from", "to", "difference"),
    *("low", "high", "p", "p_holm", "wins", "losses", "ties"),
)


def contents(
    facts: Facts,
    *,
    data: str | None = None,
    price: float | None = None,
    opening: Sequence[str] = (),
    recommended: str | None = None,
) -> Contents:
    """Build the report; `data` has the texts of queries and passages for examples, `recommended` is the name of a system."""
    report = Contents()
    if opening:
        report.blocks.append(ReportBlock("Verdict", text=list(opening), is_lead=True))
    for number, section in enumerate(facts.sections, start=1):
        tested = [m for m in section.measures if not m.startswith("Judged")]
        pairs = compare_systems(section.systems, tested)
        _add_numbers(report, section, pairs)
        report.blocks += _results(section, pairs, f"s{number}", recommended)
        if data is not None and len(section.systems) > 1:
            report.blocks += _examples(section, data, recommended)
        if section.curves:
            report.blocks.append(_depth(section, f"s{number}"))
    report.blocks += _trainings(facts.trainings)
    provenance = ReportBlock(
        "How the results were produced", text=list(machines(facts)), tables=[steps_table(facts, price)]
    )
    provenance.details += [(f"Recipe of {root}", text) for root, text in facts.recipes.items()]
    provenance.details.append(("Settings of every step", all_settings(facts)))
    report.blocks.append(provenance)
    return report


def _add_numbers(report: Contents, section: Section, pairs: Sequence[Pair]) -> None:
    for system in section.systems:
        for measure in section.measures:
            mean, spread = system.mean(measure)
            low, high = bootstrap_interval(system.per_query(measure))
            report.results.append(
                [
                    section.title,
                    system.name,
                    measure,
                    mean,
                    spread,
                    low,
                    high,
                    len(section.queries),
                    len(system.seeds),
                ]
            )
    for pair in pairs:
        d = pair.difference
        report.differences.append(
            [
                section.title,
                pair.measure,
                pair.a,
                pair.b,
                d.mean,
                d.low,
                d.high,
                d.p,
                pair.p,
                d.wins,
                d.losses,
                d.ties,
            ]
        )


def _trainings(trainings: Sequence[TrainingLosses]) -> list[ReportBlock]:
    """The losses by step; of a loss that was logged once, its value."""
    block = ReportBlock("Training")
    for number, (arm, losses) in enumerate(_by_arm(trainings).items(), start=1):
        lines = {name: points for name, points in losses.items() if len(points) > 1}
        once = [(name, *points[0]) for name, points in losses.items() if len(points) == 1]
        if lines:
            block.plots.append(Plot(f"loss{number}", plots.losses(lines), f"Losses of {arm}"))
        if once:
            values = ", ".join(f"{name} {value:.4g} at step {step:,.0f}" for name, step, value in once)
            block.text.append(f"Losses of {arm}, logged once: {values}.")
    return [block] if block.plots or block.text else []


def _by_arm(trainings: Sequence[TrainingLosses]) -> dict[str, Losses]:
    """The losses of each training. Of those whose paths differ only in a seed, the mean at every step."""
    arms: dict[tuple[Path, str], list[TrainingLosses]] = {}
    for training in trainings:
        name = without_seed(str(training.path)) or str(training.path)
        arms.setdefault((Path(name), training.phase), []).append(training)
    names, merged = _ends([path for path, _ in arms]), {}
    for (path, phase), seeds in arms.items():
        losses: dict[str, dict[float, list[float]]] = {}
        for training in seeds:
            for loss, points in training.losses.items():
                for step, value in points:
                    losses.setdefault(loss, {}).setdefault(step, []).append(value)
        means = {
            loss: [(step, sum(values) / len(values)) for step, values in sorted(steps.items())]
            for loss, steps in losses.items()
        }
        name = f"{names[path]}, {phase}" if phase else names[path]
        merged[name if len(seeds) == 1 else f"{name} (mean of {len(seeds)} seeds)"] = means
    return merged


def _ends(paths: Sequence[Path]) -> dict[Path, str]:
    """As much of the end of each path as distinguishes it."""
    different, length = set(paths), 1
    while len({path.parts[-length:] for path in different}) < len(different):
        length += 1
    names = {path: "/".join(path.parts[-length:]) for path in different}
    return {path: name.replace("--", ", ") if "=" in name else name for path, name in names.items()}


def _results(
    section: Section, pairs: Sequence[Pair], prefix: str, recommended: str | None
) -> list[ReportBlock]:
    """The means of all systems, and the differences between them."""
    main = section.measures[0]
    columns = {system.name: system.per_query(main) for system in section.systems}
    spans = {name: (float(v.mean()), *bootstrap_interval(v)) for name, v in columns.items()}
    caption = f"Mean {main} of each system with its confidence interval"
    means = Plot(f"{prefix}-means", plots.intervals(spans, main), caption)
    heading = section.title[0].upper() + section.title[1:] if section.is_held_out else section.title
    blocks = [ReportBlock(heading, tables=[results_table(section, pairs, recommended)], plots=[means])]
    if section.is_held_out and section.split == GENERATED:
        blocks[0].text.append(CAVEAT)
    if len(section.systems) > 1:
        names = _first_and_best(section, recommended)
        a, b = (columns[name] for name in names)
        dots = f"Every query: {names[0]} across, {names[1]} up; green gains"
        charts = [
            Plot(f"{prefix}-scatter", plots.scatter(a, b, names, main), dots),
            Plot(f"{prefix}-differences", plots.waterfall(a, b, main), f"From {names[0]} to {names[1]}"),
        ]
        tables = [differences_table(section, pairs)] if pairs else []  # Judged@k is not tested
        blocks.append(ReportBlock(f"Differences on {section.title}", tables=tables, plots=charts))
    return blocks


def _first_and_best(section: Section, recommended: str | None) -> tuple[str, str]:
    """The baseline (the first system) and the recommended one, or the best of the others by the main measure. If the
    baseline is recommended, the best of the others and the baseline."""
    first, *others = section.systems
    best = max(others, key=lambda s: s.mean(section.measures[0])[0]).name
    if recommended == first.name:
        return best, first.name
    return first.name, recommended if recommended in {s.name for s in others} and recommended else best


def _examples(section: Section, data: str, recommended: str | None) -> list[ReportBlock]:
    if is_questions(section.place):  # with answers instead of judgments
        return []
    queries = read_queries(data)
    if not any(query in queries for query in section.queries):
        return []
    names = _first_and_best(section, recommended)
    judged = load_judgments(section.place, split=section.split)
    runs = [as_scored(read_run(section.runs[name]), judged) for name in names]
    by_name = {system.name: system.per_query(section.measures[0]) for system in section.systems}
    a, b = (by_name[name] for name in names)
    tops_a, tops_b = (tops(run, judged.qrels, section.relevant) for run in runs)
    changes = largest_changes(section.queries, a, b, tops_a, tops_b, count=5)
    ids = {top for change in changes for top in (change.top_a, change.top_b)}
    passages = {p.id: _shown(p) for p in read_passages(data) if p.id in ids}
    repeated = Counter(passages.values())
    table = Table(
        ["Query", "System", section.measures[0], "", "First passage"],
        caption=f"Queries with the largest gains and losses from {names[0]} to {names[1]}",
        is_prose=True,
    )
    for number, change in enumerate(changes):
        gains = change.b > change.a
        if number == 0 or gains != (changes[number - 1].b > changes[number - 1].a):
            table.rows.append(Row(heading="Gains" if gains else "Losses"))
        for name, value, top, is_right in (
            (names[0], change.a, change.top_a, change.right_a),
            (names[1], change.b, change.top_b, change.right_b),
        ):
            text = passages.get(top or "", top or "no results")
            text = f"{top}: {text}" if repeated[text] > 1 else text
            query = queries.get(change.query, change.query) if name == names[0] else ""
            cells = (
                Cell(query), Cell(marked(name, recommended), is_text=True), Cell(f"{100 * value:.1f}"),
                Cell("✓" if is_right else "✗"), Cell(text, is_text=True),
            )  # fmt: skip
            table.rows.append(Row(cells, is_new=name == names[0]))
    return [ReportBlock(f"Examples from {section.title}", tables=[table])] if changes else []


def _shown(passage: Passage) -> str:
    text = " — ".join(filter(None, (passage.title, passage.text)))
    return textwrap.shorten(text, _SHOWN, placeholder=" …")


def _depth(section: Section, prefix: str) -> ReportBlock:
    captions = {
        "R": "Recall at depth k: relevant passages found",
        "Success": "Queries with a relevant passage in the top k",
        "Answer": "Questions with an answer in the top k",
    }
    charts = [
        Plot(
            f"{prefix}-{curve.replace('^', '')}",
            plots.curves(lines, section.depths),
            captions.get(curve, f"{curve}@k: share of the next stage's top results"),
        )
        for curve, lines in section.curves.items()
    ]
    return ReportBlock(f"By depth, on {section.title}", plots=charts)


def steps_table(facts: Facts, price: float | None) -> Table:
    """Every finished step: date, duration, speed, results; and the total time."""
    table = Table(["Step", "Verb", "Finished", "Took", "Speed", "Result"], caption="Steps", is_prose=True)
    for path, stage in facts.stages:
        origin = stage.meta["made"]
        cells = (
            Cell(Path(path).name, title=path),
            Cell(stage.verb, is_text=True),
            Cell(origin["finished"][:16].replace("T", " "), is_text=True),
            Cell(log.duration(origin["seconds"])),
            Cell(_speeds(stage), is_text=True),
            Cell(_short(stage.summary), is_text=True),
        )
        table.rows.append(Row(cells))
    total = f"Total time: {log.duration(facts.seconds)}"
    if price is not None:
        total += f", at {price:g} per hour {price * facts.seconds / 3600:,.2f}"
    table.notes = [total + ".", *(f"Not finished and not included: {path}." for path in facts.unfinished)]
    return table


def machines(facts: Facts) -> Iterator[str]:
    """A line for each machine and set of versions."""
    described = dict.fromkeys(
        json.dumps([s.meta["made"].get("machine", {}), s.meta["made"]["by"], s.meta["made"]["python"]])
        for _, s in facts.stages
    )
    lines: dict[str, None] = {}
    for text in described:
        machine, by, python = json.loads(text)
        parts = [
            ", ".join(machine.get("gpus", [])),
            _hardware(machine),
            f"{by}, Python {python}",
            ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items()),
        ]
        lines[" · ".join(part for part in parts if part)] = None
    yield from lines


def _hardware(machine: dict[str, Any]) -> str:
    parts = (machine.get("processor"), machine.get("cores"), machine.get("memory_gib"))
    return "{}, {} cores, {} GiB".format(*parts) if all(parts) else ""


def _speeds(stage: Artifact) -> str:
    speeds = {k.removesuffix("_per_second"): v for k, v in stage.summary.items() if k.endswith("_per_second")}
    return ", ".join(
        f"{value:,.0f} {name.replace('_', ' ')}/s"
        for name, value in speeds.items()
        if isinstance(value, int | float)
    )


def _short(summary: dict[str, Any]) -> str:
    """The first few numbers of a summary."""
    measures = summary.get("measures")
    flat = {**(measures if isinstance(measures, dict) else {}), **summary}
    numbers = [(k, v) for k, v in flat.items() if isinstance(v, int | float) and not isinstance(v, bool)]
    first = [(k, v) for k, v in numbers if "second" not in k][:4]
    return ", ".join(
        f"{k.replace('_', ' ')} {v:,}" if isinstance(v, int) else f"{k} {v:.4g}" for k, v in first
    )


def all_settings(facts: Facts) -> str:
    """Settings and inputs of every step, as JSON."""
    rows = {
        path: {
            "verb": stage.verb,
            "settings": stage.config,
            "from": {name: entry["path"] for name, entry in stage.meta["inputs"].items()},
            "digest": stage.digest,
        }
        for path, stage in facts.stages
    }
    return json.dumps(rows, indent=2, ensure_ascii=False)
