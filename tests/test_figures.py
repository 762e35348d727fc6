"""The figures in docs/results are those of the files that the benchmarks wrote."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def page() -> Any:
    spec = importlib.util.spec_from_file_location("page", BENCHMARKS / "page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_that_the_script_writes(page: Any) -> None:
    texts = [file.read_text("utf-8") for file in page.PAGES]
    for text in texts:
        assert page.filled(text) == text
    assert sum(text.count("<!-- end -->") for text in texts) == len(page.TABLES)


def test_another_figure_is_another_table(page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.loads((BENCHMARKS / "encode.json").read_text("utf-8"))
    content["models"]["MiniLM"]["tokens_per_second"]["qontext_fp32"] = 123_456
    (tmp_path / "encode.json").write_text(json.dumps(content))
    monkeypatch.setattr(page, "HERE", tmp_path)
    assert "| 123,456 |" in page.filled("<!-- encode -->\n<!-- end -->")


def test_the_picture_of_the_readme_shows_every_system(page: Any) -> None:
    content = json.loads((BENCHMARKS / "adapt.json").read_text("utf-8"))
    ranges = page.ranges(content)
    assert list(ranges) == list(page.SYSTEMS.values())
    of = [row["test"]["bm25"] for row in content["sets"].values()]
    assert ranges["BM25"] == (pytest.approx(content["mean"]["test"]["bm25"], abs=1e-3), min(of), max(of))
    assert page.FIGURE.exists() and all(
        name in page.FIGURE.read_text("utf-8") for name in ("BM25", "MiniLM adapted")
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("README.md", 500),
        ("CHANGELOG.md", 600),
        ("docs/guides/adapt.md", 600),
        ("docs/results/adapt.md", 1500),
        ("docs/results/performance.md", 1500),
    ],
)
def test_a_page_stays_short(name: str, words: int) -> None:
    """Without its tables, which are as long as what was measured."""
    text = (BENCHMARKS.parent / name).read_text("utf-8")
    prose = re.sub(r"<!-- \w+ -->\n.*?<!-- end -->", "", text, flags=re.DOTALL)
    assert len(prose.split()) <= words
