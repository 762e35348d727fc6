"""Write the tables and figures of the pages about the study from the cells, and an HTML page with all plots.

    python evidence/page.py [--cells evidence/cells] [--pages docs/results] [--html runs/evidence.html]

A figure on these pages is thus one that a cell measured. Text between the tables is written by hand.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import controls
import depth
import numpy as np
from claims import CLAIMS, Claim
from clusters import clusters_of
from curves import depth_curves, learning
from differences import precise
from record import read_cells
from study import ARMS, PILOT
from systems import (
    MAIN,
    TITLES,
    Key,
    amounts_of,
    is_deep,
    labeled,
    measures_of,
    place_of,
    slug,
    systems_of,
    values_of,
)

from qontext.evaluation import plots
from qontext.evaluation.comparison import Difference, SystemScores, format_p, holm, with_spread
from qontext.evaluation.tables import Cell, Plot, ReportBlock, Row, Table, to_markdown, to_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
PAGES = ("evidence.md", "evidence-tables.md", "depth.md")
INK = "#808080"
"""Of figures' text: readable on a light and on a dark page."""
WORDS = ("reproduced", "reproduced in part", "mixed", "contradicted in part", "contradicted", "inconclusive")
"""Verdicts, in the order in which a row names those of several starts and sets."""

SETS = {
    "FairytaleQA": "fairytaleqa",
    "MedQuAD": "medquad",
    "SQuAD": "squad_pool",
    "SQuADShifts": "squadshifts_wiki_pool",
}
DECIDE = ("plain/", "long/", "stages/", "relevance/")
"""Scales with the start of the study; others repeat some of its arms, or start elsewhere."""
MOST = (
    ("coCondenser: queries over passages", "plain", "cocondenser-passage", "cocondenser-query"),
    ("CoT-MAE, 1,500 steps: queries over passages", "long", "cot-mae-passage-long", "cot-mae-query-long"),
    ("coCondenser: queries over random spans", "plain", "cocondenser-span", "cocondenser-query"),
    ("coCondenser with queries over no pre-training", "plain", "none", "cocondenser-query"),
    ("coCondenser with queries over MLM", "plain", "mlm", "cocondenser-query"),
    ("CoT-MAE over the contrastive loss alone, 1,500 steps", "long", "contrastive-query-long", "cot-mae-query-long"),
)  # fmt: skip
"""Claim, scale, baseline and candidate of the page's table."""

PARTS = {"with labels": True, "without labels": False}
"""The columns of verdicts: what papers publish is with labels."""
CEILING = 0.99
"""Mean of a baseline above which nothing can be better."""
SEEDS = 3
"""Seeds below which no difference is called absent: intervals are over questions alone."""


@dataclass(frozen=True)
class Test:
    """One difference that a claim stands on."""

    claim: Claim
    data: str
    labels: str
    baseline: str
    candidate: str
    seeds: int
    difference: Difference
    p: float

    @property
    def is_labeled(self) -> bool:
        """True after fine-tuning on labels, as in the papers."""
        return int(self.labels.partition("+")[0]) > 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=Path, default=HERE / "cells")
    parser.add_argument("--pages", type=Path, default=HERE.parent / "docs" / "results")
    parser.add_argument("--html", type=Path, default=Path("runs/evidence.html"))
    options = parser.parse_args()
    cells = read_cells(options.cells)
    tables = tables_of(cells)
    texts = {name: filled((options.pages / name).read_text("utf-8"), tables) for name in PAGES}
    for name, text in texts.items():
        (options.pages / name).write_text(text, "utf-8")
    systems = systems_of(cells)
    curves = learning(systems) | depth_curves(cells)
    drawn = figures(systems) | curves
    for name, figure in drawn.items():
        file = f"figures/evidence-{name}.svg"
        if any(f"({file})" in text for text in texts.values()):
            (options.pages / file).write_bytes(plots.svg_bytes(figure, name, ink=INK))
    options.html.parent.mkdir(parents=True, exist_ok=True)
    options.html.write_text(html(cells, tables, drawn, list(curves)), "utf-8")


def tests_of(cells: Sequence[dict[str, Any]]) -> list[Test]:
    """Every difference of every claim, over the seeds that both arms have; p values corrected over those of the claim."""
    tests, values = [], values_of(cells)
    for claim in CLAIMS:
        rows = []
        for data, labels in sorted({key[:2] for key in values if is_tested(key[1])}):
            for baseline, candidate in claim.pairs:
                measure = claim.measure
                both = [values.get((data, labels, arm), {}) for arm in (baseline, candidate)]
                if seeds := sorted(both[0].keys() & both[1].keys()):
                    a, b = (np.mean([of_arm[seed][measure] for seed in seeds], axis=0) for of_arm in both)
                    if a.mean() > CEILING:
                        continue
                    found = precise(a, b, clusters_of(data, len(a)))
                    rows.append((claim, data, labels, baseline, candidate, len(seeds), found))
        tests += [Test(*row, p) for row, p in zip(rows, holm([row[-1].p for row in rows]))]
    return tests


def is_tested(labels: str) -> bool:
    """True if differences are tested: of vectors as they come, and whitened."""
    return labels.partition("+")[2] in ("", "whitened")


def verdict(tests: Sequence[Test], claim: Claim) -> str:
    """The verdict on a claim's differences. None significant is no null: what they could have shown decides the word."""
    own = [test for test in tests if test.claim is claim]
    if not own:
        return "not tested"
    helps = [test.difference.mean > 0 and test.p < 0.05 for test in own]
    harms = [test.difference.mean < 0 and test.p < 0.05 for test in own]
    if all(helps):
        return "reproduced"
    if any(helps):
        return "reproduced in part" if not any(harms) else "mixed"
    if any(harms):
        return "contradicted" if all(harms) else "contradicted in part"
    highest = max(100 * test.difference.high for test in own)
    is_comparable = all(test.is_labeled and test.seeds >= SEEDS for test in own)
    if is_comparable and claim.published is not None and highest < claim.published:
        return f"no effect larger than {max(highest, 0):.1f}"
    return f"inconclusive (could show ≥ {max(map(detectable, own)):.1f} at 80 % power)"


def detectable(test: Test) -> float:
    """The difference, in points, that a two-sided test at the 5 % level finds in 80 % of samples of so many questions:
    (z₀.₉₇₅ + z₀.₈) standard errors. The standard error is that of the 95 % interval; p values are corrected besides."""
    standard_error = 100 * (test.difference.high - test.difference.low) / (2 * 1.96)
    return (1.96 + 0.84) * standard_error


def by_set(tests: Sequence[Test]) -> dict[str, list[Test]]:
    """The differences by set. Those from the plain start count; where there are none, those of other scales. Sets that no
    arm was trained on do not count: their encoders are those of another set."""
    sets: dict[str, list[Test]] = defaultdict(list)
    for test in tests:
        if test.data.partition("/")[2] in SETS.values():
            sets[test.data.partition("/")[2]].append(test)
    decide = {name: [test for test in own if test.data.startswith(DECIDE)] for name, own in sets.items()}
    return {name: decide[name] or own for name, own in sets.items()}


def summary(tests: Sequence[Test], claim: Claim) -> str:
    """The verdicts on a claim with the number of sets of each, and the least and the greatest difference."""
    found: dict[str, list[Test]] = defaultdict(list)
    for own in by_set([test for test in tests if test.claim is claim]).values():
        found[verdict(own, claim).partition(" (could show")[0]] += own
    if not found:
        return "not tested"
    texts = []
    for word in sorted(found, key=lambda word: WORDS.index(word) if word in WORDS else len(WORDS)):
        count = len({test.data.partition("/")[2] for test in found[word]})
        weakest = f" (≥{max(map(detectable, found[word])):.1f})" if word == "inconclusive" else ""
        texts.append(f"{word}{weakest}: {count}")
    points = sorted(100 * test.difference.mean for own in found.values() for test in own)
    return (
        f"{', '.join(texts)}; {'…'.join(f'{point:+.1f}' for point in dict.fromkeys((points[0], points[-1])))}"
    )


def claims_table(tests: Sequence[Test]) -> Table:
    """A row per claim."""
    table = Table(["claim", "paper", "published", *PARTS, "seeds", "confounded by"], is_prose=True)
    for claim in CLAIMS:
        published = f"{claim.published:+.1f}" if claim.published is not None else "–"
        own = [test for test in tests if test.claim is claim]
        found = []
        for is_labeled in PARTS.values():
            part = [test for test in own if test.is_labeled == is_labeled]
            found.append(summary(part, claim) if part else "–" if own else "not tested")
        seeds = (
            "–".join(dict.fromkeys(str(of(test.seeds for test in own)) for of in (min, max))) if own else "–"
        )
        texts = [claim.text, claim.place, published, *found, seeds, ", ".join(claim.faults) or "–"]
        table.rows.append(Row(tuple(Cell(text, is_text=True) for text in texts)))
    return table


def sets_table(cells: Sequence[dict[str, Any]]) -> Table:
    """The claims that matter most, on each set: the difference in points, its interval and the number of seeds."""
    table, values = Table(["claim", "search", *SETS]), values_of(cells)
    for title, scale, baseline, candidate in MOST:
        for labels in ("0", "1000", "1000+bm25"):
            texts = []
            for name in SETS.values():
                place = f"{scale}/{name}"
                both = [values.get((place, labels, arm), {}) for arm in (baseline, candidate)]
                seeds = sorted(both[0].keys() & both[1].keys())
                if seeds:
                    a, b = (np.mean([of[seed][MAIN] for seed in seeds], axis=0) for of in both)
                    d = precise(a, b, clusters_of(place, len(a)))
                    of_points = f"{100 * d.mean:+.1f} ({100 * d.low:.1f} … {100 * d.high:.1f})"
                texts.append(f"{of_points}, {len(seeds)}" if seeds else "–")
            if set(texts) != {"–"}:
                first = [Cell(text, is_text=True) for text in (title, labeled(labels))]
                table.rows.append(Row((*first, *map(Cell, texts))))
    return table


def differences_table(tests: Sequence[Test]) -> Table:
    columns = ["claim", "baseline", "candidate", "set", "labels", "seeds", "difference", "95 %", "p"]
    table = Table(columns)
    for test in tests:
        d = test.difference
        cells = [test.claim.text, TITLES[test.baseline], TITLES[test.candidate], test.data]
        numbers = [
            test.labels,
            str(test.seeds),
            f"{100 * d.mean:+.1f}",
            f"{100 * d.low:+.1f} … {100 * d.high:+.1f}",
        ]
        row = [Cell(text, is_text=True) for text in cells] + [
            Cell(text) for text in (*numbers, format_p(test.p))
        ]
        table.rows.append(Row(tuple(row)))
    return table


def arms_table(systems: dict[Key, SystemScores], cells: Sequence[dict[str, Any]], data: str) -> Table:
    """A row per arm of a data set."""
    amounts = amounts_of(systems, data)
    columns = ["pre-training", "seeds", "minutes"]
    table = Table(
        [
            *columns,
            *(f"{measure}, {labeled(labels)}" for labels in amounts for measure in measures_of(labels)),
        ]
    )
    for arm in ARMS:
        own = [cell for cell in cells if (place_of(cell), cell["arm"]) == (data, arm.name)]
        if not own:
            continue
        seconds = [
            sum(s for n, s in cell["seconds"].items() if n.startswith(f"pretrain-{arm.name}-"))
            for cell in own
        ]
        minutes = min(seconds) / 60  # machines did other work besides, some of them much
        texts = [str(len(own)), f"{minutes:.1f}"]
        for labels in amounts:
            system = systems.get((data, labels, arm.name))
            texts += [with_spread(*system.mean(m)) if system else "–" for m in measures_of(labels)]
        table.rows.append(Row((Cell(arm.title, is_text=True), *map(Cell, texts))))
    return table


SHORT_ARMS = (
    "bm25", "words-64", "none", "mlm", "cot-mae-query", "cocondenser-passage", "cocondenser-span", "cocondenser-query",
    "contrastive-query",
)  # fmt: skip
"""The rows of the short table."""


def short_table(systems: dict[Key, SystemScores]) -> Table:
    """The means of the arms that decide, on all sets, without labels and with the most."""
    columns = [(name, f"plain/{of}", labels) for name, of in SETS.items() for labels in ("0", "1000")]
    table = Table(["pre-training", *(f"{name}, {labeled(labels)}" for name, _, labels in columns)])
    for arm in SHORT_ARMS:
        # A floor without a model is a control of every scale.
        own = [
            systems.get((place, labels, arm))
            or systems.get((f"controls/{place.partition('/')[2]}", labels, arm))
            for _, place, labels in columns
        ]
        if any(own):
            texts = [f"{system.mean(MAIN)[0]:.3f}".removeprefix("0") if system else "–" for system in own]
            table.rows.append(Row((Cell(TITLES[arm], is_text=True), *map(Cell, texts))))
    return table


def tables_of(cells: Sequence[dict[str, Any]]) -> dict[str, Table]:
    """All tables by name; those of the arms have the names of their start and data set. The study at depth has tables of its
    own: its cells change no verdict of the first one."""
    first = [cell for cell in cells if not is_deep(cell)]
    systems, tests = systems_of(first), tests_of(first)
    places = sorted({key[0] for key in systems})
    deep = dict.fromkeys(["depth", *(cell["scale"].removesuffix(PILOT) for cell in cells if is_deep(cell))])
    return {
        "most": sets_table(first),
        "claims": claims_table(tests),
        "short": short_table(systems),
        "controls_differences": controls.differences_table(first),
        **{scale: controls.registered_table(first, scale) for scale in controls.REGISTERED},
        **{re.sub(r"\W", "_", place): arms_table(systems, first, place) for place in places},
        "differences": differences_table(tests),
        **{name: table for scale in deep for name, table in depth.tables(cells, scale).items()},
    }


def filled(page: str, tables: Mapping[str, Table]) -> str:
    """The page with its tables made anew. A table stands between ``<!-- NAME -->`` and ``<!-- end -->``."""
    return re.sub(
        r"(<!-- (\w+) -->\n).*?(<!-- end -->)",
        lambda m: m[1] + shown(tables.get(m[2], Table([]))) + "\n" + m[3],
        page,
        flags=re.DOTALL,
    )


def shown(table: Table) -> str:
    return to_markdown(table) if table.rows else "None is measured yet.\n"


def html(
    cells: Sequence[dict[str, Any]],
    tables: Mapping[str, Table],
    drawn: Mapping[str, Figure],
    curves: Sequence[str],
) -> str:
    blocks = [ReportBlock("Claims", tables=[tables["claims"]])]
    systems = systems_of(cells)
    for data in sorted({key[0] for key in systems}):
        names = [f"{data}-{labels}" for labels in amounts_of(systems, data)]
        seen = [Plot(slug(name), drawn[slug(name)], name.replace("-", ", ")) for name in names]
        blocks.append(ReportBlock(data, tables=[arms_table(systems, cells, data)], plots=seen))
    if curves:
        blocks.append(
            ReportBlock("Learning curves", plots=[Plot(name, drawn[name], name) for name in curves])
        )
    blocks += [
        ReportBlock(name.replace("_", " "), tables=[table])
        for name, table in tables.items()
        if name.startswith("depth") and table.rows
    ]
    blocks.append(ReportBlock("All differences", tables=[tables["differences"]]))
    return to_page("Evidence", "The claims of the papers, tested with Qontext on public data", blocks)


def figures(systems: dict[Key, SystemScores]) -> dict[str, Figure]:
    """Each arm's mean and its interval, by start, data set and number of labels."""
    drawn = {}
    for data in sorted({key[0] for key in systems}):
        for labels in amounts_of(systems, data):
            values = {}
            for arm in ARMS:
                if system := systems.get((data, labels, arm.name)):
                    column = system.per_query(MAIN)
                    d = precise(np.zeros_like(column), column, clusters_of(data, len(column)))
                    values[arm.title] = (d.mean, d.low, d.high)
            drawn[slug(f"{data}-{labels}")] = plots.intervals(values, f"{MAIN}, {labeled(labels)}")
    return drawn


if __name__ == "__main__":
    main()
