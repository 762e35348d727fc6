"""The tables of a report: our systems, published ones, and differences."""

from __future__ import annotations

from collections.abc import Sequence

from qontext.evaluation import published
from qontext.evaluation.comparison import Pair, format_p, marks
from qontext.evaluation.gather import Section
from qontext.evaluation.tables import Cell, Row, Table

_MOST_DIFFERENCES = 24  # rows; with more, only those of the main measure are shown (the CSV has all)


def results_table(section: Section, pairs: Sequence[Pair], recommended: str | None = None) -> Table:
    """Every system and measure, published systems above ours where the benchmark is the same. p is against the
    recommended system, or the first one."""
    names = [system.name for system in section.systems]
    reference = recommended if recommended in names and recommended else names[0]
    measures = section.measures
    others = _published(section)
    best = {
        m: max(
            [100 * s.mean(m)[0] for s in section.systems]
            + [row.figures[section.title][m] for row in others if m in row.figures[section.title]]
        )
        for m in measures
        if not m.startswith("Judged")
    }
    several = len(section.systems) > 1
    n = f"n = {len(section.queries):,}"
    table = Table(
        ["System", *measures, *(["p"] if several else [])],
        caption=f"Results on {section.title}, {n}, × 100",
    )
    for row in others:
        if row is others[0]:
            table.rows.append(Row(heading="Published"))
        figures = row.figures[section.title]
        cells = [_figure_cell(figures.get(m), best.get(m)) for m in measures]
        cells += [Cell("–")] if several else []
        table.rows.append(Row((Cell(row.system, title=row.source), *cells)))
    if others:
        table.rows.append(Row(heading="Measured here"))
    for i, system in enumerate(section.systems):
        name = marked(system.name, recommended)
        name = f"{chr(ord('a') + i % 26)}  {name}" if several else name
        cells = []
        for measure in measures:
            mean, spread = system.mean(measure)
            text = f"{100 * mean:.1f}" + (f" ± {100 * spread:.1f}" if spread is not None else "")
            is_best = measure in best and round(100 * mean, 1) >= round(best[measure], 1)
            cells.append(Cell(text, marks(section.systems, pairs, measure).get(system.name, ""), is_best))
        cells += [Cell(_p_between(system.name, reference, section, pairs))] if several else []
        table.rows.append(Row((Cell(name, is_best=system.name == recommended), *cells), is_ours=True))
    table.notes = _notes(section, others, reference)
    return table


def marked(name: str, recommended: str | None) -> str:
    """The name of a system in a table."""
    return f"{name} (recommended)" if name == recommended else name


def _published(section: Section) -> list[published.Published]:
    """Published systems with results for this benchmark and our measures; none for a subset of the collection."""
    if section.benchmark is None or _is_partial(section):
        return []
    rows = published.rows_for(section.benchmark.name)
    return [row for row in rows if any(m in row.figures[section.benchmark.name] for m in section.measures)]


def _is_partial(section: Section) -> bool:
    """True if only a part of the benchmark's collection was searched."""
    assert section.benchmark is not None
    return any(count < 0.99 * section.benchmark.passages for count in section.searched.values())


def _figure_cell(figure: float | None, best: float | None) -> Cell:
    return Cell("–" if figure is None else f"{figure:.1f}", is_best=figure is not None and figure == best)


def _p_between(name: str, reference: str, section: Section, pairs: Sequence[Pair]) -> str:
    """The corrected p of the difference between two systems on the main measure."""
    both = {name, reference}
    values = (p.p for p in pairs if p.measure == section.measures[0] and {p.a, p.b} == both)
    return next((format_p(p) for p in values), "–")


def _notes(section: Section, others: Sequence[published.Published], reference: str) -> list[str]:
    notes = [f"{len(section.queries):,} queries; a query without results scores 0."]
    missing = {name: count for name, count in section.without_results.items() if count}
    if missing:
        notes.append("Queries without results: " + ", ".join(f"{n} {c:,}" for n, c in missing.items()) + ".")
    if len(section.systems) > 1:
        notes.append(
            "A superscript letter: significantly better than that system (paired randomization test, Holm's "
            f"correction over all pairs of systems, p < .05). p: {section.measures[0]} against "
            f"{reference}, by the same test."
        )
    if any(len(system.seeds) > 1 for system in section.systems):
        notes.append(
            "± is the standard deviation over training seeds; tests use each query's mean over them."
        )
    if others:
        assert section.benchmark is not None
        sources = "; ".join(dict.fromkeys(row.source for row in others))
        notes.append(
            f"Published results are for the whole collection of {section.benchmark.passages:,} passages. "
            f"From: {sources}."
        )
    elif section.benchmark is not None and _is_partial(section):
        notes.append(
            f"Only a part of the {section.benchmark.passages:,} passages was searched, "
            "so published results are not comparable."
        )
    return notes


def differences_table(section: Section, pairs: Sequence[Pair]) -> Table:
    """Differences of pairs of systems, with interval, corrected p, wins, losses and ties."""
    rows = [p for p in pairs if len(pairs) <= _MOST_DIFFERENCES or p.measure == section.measures[0]]
    several = len(section.systems) > 2
    table = Table(
        ["Systems" if several else "Measure", "Difference", "p", "95 % interval", "Wins / losses / ties"],
        caption=(f"Differences on {section.title}" if several else f"From {rows[0].a} to {rows[0].b}")
        + f", n = {len(section.queries):,}, × 100",
        notes=[
            "Intervals: bootstrap over queries. p: corrected, as above; bold where p < .05. "
            "A positive difference, and a win on a query, are in favor of the second system."
        ],
    )
    for i, pair in enumerate(rows):
        if several and (i == 0 or pair.measure != rows[i - 1].measure):
            table.rows.append(Row(heading=pair.measure))
        d = pair.difference
        cells = (
            Cell(f"{pair.a} → {pair.b}" if several else pair.measure),
            Cell(_signed(d.mean), is_best=pair.is_significant()),
            Cell(format_p(pair.p)),
            Cell(f"{_signed(d.low)} … {_signed(d.high)}"),
            Cell(f"{d.wins:,} / {d.losses:,} / {d.ties:,}"),
        )  # fmt: skip
        table.rows.append(Row(cells))
    return table


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")
