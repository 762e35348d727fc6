"""One table in three forms, and text from data that means something in each of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from qontext.evaluation.tables import Cell, Row, Table, to_html, to_latex, to_markdown

HOSTILE = '<script>alert("1")</script> & | $x_1$ 50% `code` \\end{table}'


def table() -> Table:
    rows = [
        Row(heading="Published"),
        Row((Cell("BM25"), Cell("18.7"))),
        Row((Cell(HOSTILE), Cell("40.2", mark="a", is_best=True)), is_new=True),
    ]
    return Table(["System", "MRR@10"], rows, caption="Results_1", notes=["50 % of <all>"])


def test_html() -> None:
    page = to_html(table())
    assert "<script" not in page
    assert "&lt;script&gt;alert(&#34;1&#34;)" in page
    assert "<td><b>40.2</b><sup>a</sup></td>" in page
    assert '<tr class="new"><th scope="row"' in page
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


STRANGE = '[2] 50% _x^y ~z #1 {a} $5 \\end{tabular} <&> „q“ «q» ≤ ✓ ✗ → ± × − – … é \u0065\u0301 "q"'


def test_latex_is_balanced_and_breaks_only_long_texts() -> None:
    rows = [Row((Cell(STRANGE), Cell("a", is_text=True), Cell("word " * 20, is_text=True), Cell("1")))]
    text = to_latex(Table(["System", "x", "Text", "y"], rows, caption=STRANGE))
    assert r"\begin{tabular}{llp{7cm}r}" in text
    bare = re.sub(r"\\[{}%&]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("&") == 2 * 3  # between the four columns of two lines
    assert re.findall(r"^\s*\[", text, re.MULTILINE) == []  # would be an option of the line before
    assert all(sign not in bare for sign in "%<>≤✓→") or bare.count("%") == 1  # the one of \\resizebox


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX on this machine")
def test_latex_compiles(tmp_path: Path) -> None:
    cells = (Cell(STRANGE, mark="ab", is_best=True), Cell(STRANGE, is_text=True), Cell("− 1.2 ± 0.3"))
    table = Table(["100 %", "a_b", "#"], [Row(heading=STRANGE), Row(cells), Row(cells)], STRANGE, [STRANGE])
    preamble = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}"
    (tmp_path / "x.tex").write_text("\n".join([preamble, to_latex(table), r"\end{document}"]))
    process = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "x.tex"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout.decode(errors="replace")[-1500:]
    assert b"Overfull" not in process.stdout.replace(b"Overfull \\vbox", b"")
