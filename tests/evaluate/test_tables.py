"""One table in four forms, and text from data that means something in each of them."""

from __future__ import annotations

import csv
import io

from qontext.evaluate.tables import Cell, Row, Table, to_csv, to_html, to_latex, to_markdown

HOSTILE = '<script>alert("1")</script> & | $x_1$ 50% `code` \\end{table}'


def table() -> Table:
    rows = [
        Row(heading="Published"),
        Row((Cell("BM25"), Cell("18.7"))),
        Row((Cell(HOSTILE, title=HOSTILE), Cell("40.2", mark="a", is_best=True)), is_ours=True),
    ]
    return Table(["System", "MRR@10"], rows, caption="Results_1", notes=["50 % of <all>"])


def test_html() -> None:
    page = to_html(table())
    assert "<script" not in page
    assert "&lt;script&gt;alert(&quot;1&quot;)" in page
    assert "<td><b>40.2</b><sup>a</sup></td>" in page
    assert '<tr class="ours"><th scope="row"' in page
    assert "50 % of &lt;all&gt;" in page


def test_markdown() -> None:
    lines = to_markdown(table()).splitlines()
    assert lines[2] == "| System | MRR@10 |"
    assert lines[3] == "| --- | ---: |"
    assert lines[4] == "| *Published* | |"
    assert lines[6].endswith("| **40.2**<sup>a</sup> |")
    assert "<script" not in lines[6]
    assert lines[6].replace(r"\|", "").count("|") == 3  # the bar in the name starts no column


def test_latex() -> None:
    text = to_latex(table())
    assert r"\begin{tabular}{lr}" in text
    assert r"\textbf{40.2}$^{\mathrm{a}}$ \\" in text
    assert r"\multicolumn{2}{l}{\textit{Published}} \\" in text
    assert r"\$x\_1\$ 50\% `code` \textbackslash{}end\{table\}" in text
    assert r"\caption{Results\_1. 50 \% of $<$all$>$}" in text


def test_csv_reads_back_and_holds_no_formula() -> None:
    text = to_csv(["a", "b"], [["x,y", 0.1], ["=1+1", None]])
    assert list(csv.reader(io.StringIO(text))) == [["a", "b"], ["x,y", "0.1"], ["'=1+1", ""]]
