"""Write the tables and figures of the pages about the study from the cells, and an HTML page with all plots.

    python evidence/page.py [--cells evidence/cells] [--pages docs/results] [--differences evidence/differences.json]
        [--html runs/evidence.html]

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
from differences import DRAWN, precise, read_drawn, write_drawn
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
from qontext.evaluation.page import Plot, ReportBlock, to_page
from qontext.evaluation.tables import Cell, Row, Table, to_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
PAGES = ("evidence.md", "evidence-tables.md", "depth.md")
INK = "#808080"
"""Of figures' text: readable on a light and on a dark page."""
WORDS = ("reproduced", "reproduced in part", "mixed", "contradicted in part", "contradicted", "inconclusive")
"""Verdicts, in the order in which a row names those of several starts and sets."""

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
    parser.add_argument("--differences", type=Path, default=HERE / "differences.json")
    parser.add_argument("--pages", type=Path, default=HERE.parent / "docs" / "results")
    parser.add_argument("--html", type=Path, default=Path("runs/evidence.html"))
    options = parser.parse_args()
    cells = read_cells(options.cells)
    DRAWN.update(read_drawn(options.differences))
    tables = tables_of(cells)
    texts = {name: filled((options.pages / name).read_text("utf-8"), tables) for name in PAGES}
    for name, text in texts.items():
        (options.pages / name).write_text(text, "utf-8")
    systems = systems_of(cells)
    curves = learning(systems) | depth_curves(cells)
    drawn = figures(systems) | curves
    write_drawn(options.differences, DRAWN)
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


def verdicts(tests: Sequence[Test], claim: Claim) -> str:
    """One verdict if it is the same at every start and data set, else each with its places."""
    places = sorted({test.data for test in tests if test.claim is claim})
    where: dict[str, list[str]] = defaultdict(list)
    for place in places:
        where[verdict([test for test in tests if test.data == place], claim)].append(place)
    if len(where) < 2:
        return verdict(tests, claim)
    return "; ".join(f"{text} ({', '.join(where[text])})" for text in where)


def summary(tests: Sequence[Test], claim: Claim) -> str:
    """The verdicts of a claim without their places: the number of starts and sets with each."""
    own = [test for test in tests if test.claim is claim]
    found: dict[str, list[float]] = defaultdict(list)
    for place in sorted({test.data for test in own}):
        there = [test for test in own if test.data == place]
        word = verdict(there, claim).partition(" (could show")[0]
        found[word].append(max(map(detectable, there)))
    texts = {
        word: word + (f" (≥{max(found[word]):.1f})" if word == "inconclusive" else "")
        for word in sorted(found, key=lambda word: WORDS.index(word) if word in WORDS else len(WORDS))
    }
    if len(texts) < 2:
        return next(iter(texts.values()), "not tested")
    return ", ".join(f"{text}: {len(found[word])}" for word, text in texts.items())


def verdicts_table(tests: Sequence[Test]) -> Table:
    """A row per claim, without places: what the page shows."""
    table = Table(["claim", "published", *PARTS, "confounded by"], is_prose=True)
    for claim in CLAIMS:
        published = f"{claim.published:+.1f}" if claim.published is not None else "–"
        found = []
        for is_labeled in PARTS.values():
            own = [test for test in tests if test.claim is claim and test.is_labeled == is_labeled]
            found.append(f"{summary(own, claim)}; {ends(own)}" if own else "–")
        if not any(test.claim is claim for test in tests):
            found[0] = "not tested"
        texts = [claim.text, published, *found, ", ".join(claim.faults) or "–"]
        table.rows.append(Row(tuple(Cell(text, is_text=True) for text in texts)))
    return table


def ends(tests: Sequence[Test]) -> str:
    """The least and the greatest difference, in points."""
    points = [100 * test.difference.mean for test in tests]
    return f"{min(points):+.1f}…{max(points):+.1f}" if len(points) > 1 else f"{points[0]:+.1f}"


def claims_table(tests: Sequence[Test]) -> Table:
    columns = ["claim", "paper", "published", *PARTS, "confounded by", "tested", "better", "worse"]
    table = Table(columns, is_prose=True)
    for claim in CLAIMS:
        own = [test for test in tests if test.claim is claim]
        signs = [np.sign(test.difference.mean) if test.p < 0.05 else 0 for test in own]
        published = f"{claim.published:+.1f}" if claim.published is not None else "–"
        parts = ([test for test in own if test.is_labeled == is_labeled] for is_labeled in PARTS.values())
        found = [verdicts(part, claim) if part else "–" for part in parts]
        if not own:
            found[0] = verdict([], claim)
        texts = [claim.text, claim.place, published, *found, ", ".join(claim.faults) or "–"]
        numbers = [str(len(own)), str(signs.count(1)), str(signs.count(-1))]
        table.rows.append(Row((*(Cell(text, is_text=True) for text in texts), *map(Cell, numbers))))
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


SHORT = {
    "FairytaleQA": "plain/fairytaleqa",
    "MedQuAD": "plain/medquad",
    "SQuAD": "plain/squad_pool",
    "SQuADShifts": "plain/squadshifts_wiki_pool",
}
SHORT_ARMS = (
    "bm25", "words-64", "none", "mlm", "cot-mae-query", "cocondenser-passage", "cocondenser-span", "cocondenser-query",
    "contrastive-query",
)  # fmt: skip
"""The rows of the short table."""


def short_table(systems: dict[Key, SystemScores]) -> Table:
    """The means of the arms that decide, on all sets, without labels and with the most."""
    columns = [(name, place, labels) for name, place in SHORT.items() for labels in ("0", "1000")]
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
        "verdicts": verdicts_table(tests),
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
