"""The notebook of the examples: its cells run in order, with tiny models, without Jupyter."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import save_bert, write_inputs

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
SMALLER = {
    "steps=20, batch_size=16": "steps=2, batch_size=4",
    "steps=20, batch_size=8": "steps=2, batch_size=4",
}


def run(cell: str, names: dict[str, Any]) -> Any:
    """Execute a cell; returns the value of its last line, if that is an expression, as a notebook shows it."""
    tree = ast.parse(cell)
    if isinstance(tree.body[-1], ast.Expr):
        name = ast.Name("_shown", ast.Store())
        tree.body[-1] = ast.Assign([name], tree.body[-1].value)
    exec(compile(ast.fix_missing_locations(tree), "cell", "exec"), names)
    return names.pop("_shown", None)


def test_the_cells_run_in_order(
    adapted: Any, minilm: Path, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    adapted.out.rename(tmp_path / "adapted")
    (tmp_path / "inputs").mkdir()
    write_inputs(tmp_path / "inputs", "data", {"train": range(20), "test": range(20, 30)})
    (tmp_path / "inputs" / "data").rename(tmp_path / "data")
    save_bert(tmp_path / "reranker", minilm, num_labels=1)
    names = {
        "sentence-transformers/all-MiniLM-L6-v2": str(small_encoder),
        "cross-encoder/ms-marco-MiniLM-L6-v2": "reranker",
    }
    space: dict[str, Any] = {}
    shown = []
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            text = "".join(cell["source"])
            for name, tiny in {**names, **SMALLER}.items():
                text = text.replace(name, tiny)
            shown.append(run(text, space))
    tables = [value for value in shown if hasattr(value, "_repr_html_")]
    assert len(tables) == 8 and all(value._repr_html_().count("<table>") >= 1 for value in tables)
    assert [hit.passage for hit in shown[1]] == [hit.passage for hit in shown[2]]
    assert shown[-1][0].rank == 1
