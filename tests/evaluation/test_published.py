"""The papers' figures: complete, under names that recipes can name, and in agreement with each other."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from qontext.evaluation import benchmarks
from qontext.evaluation.benchmarks import ABLATIONS, LEADERBOARDS, PAPERS, ROWS

DEV = "msmarco-passage/dev"
QAC, COCONDENSER, COT_MAE = (PAPERS[name] for name in ("query-as-context", "cocondenser", "cot-mae"))


def test_a_name_and_a_benchmark_have_one_row() -> None:
    places = Counter((row.system, name) for row in (*ROWS, *ABLATIONS, *LEADERBOARDS) for name in row.figures)
    assert {place for place, count in places.items() if count > 1} == set()


@pytest.mark.parametrize(
    ("paper", "tables"), [(QAC, {1, 2, 3, 4}), (COCONDENSER, {1, 2, 3, 4, 5}), (COT_MAE, {1, 2, 3, 4, 5})]
)
def test_every_table_with_figures_is_there(paper: str, tables: set[int]) -> None:
    sources = {row.source for row in (*ROWS, *ABLATIONS, *LEADERBOARDS) if row.source.startswith(paper)}
    assert {
        int(number) for source in sources for number in source[len(paper) :] if number.isdigit()
    } >= tables


def test_a_table_s_default_is_the_main_figure() -> None:
    """The ablations of CoT-MAE share one run, at its defaults."""
    for name in ("masks 30 % and 45 %", "contexts near+olap+rand", "decoder layers 2"):
        (row,) = benchmarks.named(f"CoT-MAE (800k), {name}")
        (main,) = benchmarks.named("CoT-MAE (800k)")
        assert row.figures[DEV]["MRR@10"] == main.figures[DEV]["MRR@10"] == 39.2


def test_ablations_are_beside_no_system_in_a_report() -> None:
    assert not any(row.system == shown.system for row in ABLATIONS for shown in benchmarks.rows_for(DEV))


SECTIONS = {
    "Wu et al. 2023": "1 2 2.1 2.2 3 3.1 3.2 4 4.1 4.2 4.3 4.4 4.5 5 5.1 5.2",
    "Gao & Callan 2022": "1 2 3 3.1 3.2 3.3 3.4 4 4.1 4.2 4.2.1 4.2.2 4.3 5 5.1 5.2 5.3 5.4",
    "Wu et al. 2022": "1 2 3 3.1 3.2 3.3 4 4.1 4.2 4.3 5 5.1 5.2 5.3 5.4 5.5 5.6",
}
"""The numbered sections of the papers, by the name under which they are cited."""


def test_cited_sections_exist() -> None:
    root = Path(__file__).parents[2]
    files = [
        file
        for folder, pattern in (("src", "*.py"), ("src", "*.toml"), ("docs", "*.md"), ("evidence", "*.py"))
        for file in (root / folder).rglob(pattern)
    ]
    cited = [
        (file.name, paper.replace("&amp;", "&"), number)
        for file in files
        for paper, numbers in re.findall(
            r"((?:Wu et al\.|Gao &(?:amp;)? Callan) 20\d\d), sections? ([\d.]+(?: and [\d.]+)*)",
            re.sub(r"\s+(?:# )?", " ", file.read_text(encoding="utf-8")),
        )
        for number in numbers.replace(" and", "").split()
    ]
    assert len(cited) > 10
    for file, paper, number in cited:
        assert number.strip(".") in SECTIONS[paper].split(), f"{file}: {paper}, section {number}"


def test_a_paper_has_one_year() -> None:
    assert [paper.partition(",")[0] for paper in (QAC, COCONDENSER, COT_MAE)] == list(SECTIONS)
