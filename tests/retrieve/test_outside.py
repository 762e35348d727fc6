"""Commands that search: questions in, a run out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qontext import api, evaluate, load_qrels
from qontext.data.runs import read_run
from qontext.frame import artifacts, trust
from qontext.frame.errors import QontextError

LAMPS = (
    "The lamp of the northern tower was lit by oil until a storm broke its glass in the winter of that year."
)
BOATS = (
    "Two boats carried coal and bread to the island every week, and took letters back to the harbour master."
)
BELLS = (
    "A bell rang in fog so that fishermen could hear how near the cliffs were when they saw nothing at all."
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two documents in folders, one of two passages; two judged questions."""
    root = tmp_path / "data"
    (root / "qrels").mkdir(parents=True)
    rows = [("a1", "guide/lamps.md", LAMPS), ("a2", "guide/lamps.md", BELLS), ("b1", "boats.md", BOATS)]
    corpus = [{"_id": id, "title": "", "text": text, "doc_id": doc} for id, doc, text in rows]
    (root / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))
    queries = [
        {"_id": "q1", "text": "which lamp was lit by oil?"},
        {"_id": "q2", "text": "who carried coal?"},
    ]
    (root / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (root / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\ta1\t1\nq2\tb1\t1\n")
    return root


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """A program of these lines, as a command."""

    def write(code: str) -> str:
        file = tmp_path / "system.py"
        file.write_text(f"import json, sys\nquestions = [json.loads(line) for line in sys.stdin]\n{code}\n")
        return f"{sys.executable} {file}"

    return write


def test_a_command_is_asked_once_and_its_run_is_as_any_other(
    data: Path, script: Callable[[str], str]
) -> None:
    code = """
for q in questions:
    found = ["a1"] if "lamp" in q["text"] else ["guide/lamps.md", "boats.md", "nowhere.md"]
    for rank, id in enumerate(found):
        print(q["id"], "Q0", id, rank + 1, -rank, "mine")
print(len(questions), file=sys.stderr)
"""
    out = api.retrieve(system=script(code), data=data, split="test", k=10, out=data.parent / "out")
    run = read_run(out.path)
    assert [hit.passage for hit in run["q1"]] == ["a1"]
    assert [hit.passage for hit in run["q2"]] == ["a1", "b1"], "of a document, the closest passage"
    assert evaluate(read_run(out.path), load_qrels(data)).means["MRR@10"] == 0.75


@pytest.mark.parametrize(
    ("code", "message"),
    [("sys.exit(3)", "exit code 3"), ("print('q1 Q0 nowhere.md 1 1 mine')", "first one is 'nowhere.md'")],
)
def test_a_command_that_fails_leaves_nothing(
    data: Path, script: Callable[[str], str], code: str, message: str
) -> None:
    with pytest.raises(QontextError, match=message):
        api.retrieve(system=script(code), data=data, split="test", out=data.parent / "out")
    assert not (data.parent / "out").exists()


def test_a_command_that_finds_nothing_scores_nothing(data: Path, script: Callable[[str], str]) -> None:
    out = api.retrieve(system=script(""), data=data, split="test", out=data.parent / "out")
    assert out.summary["results"] == 0
    assert evaluate(read_run(out.path), load_qrels(data)).means["MRR@10"] == 0


def test_a_recipe_runs_no_command_that_the_user_did_not_name(
    data: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(trust.decided, "words", set())
    (tmp_path / "recipe.toml").write_text(
        f'[search]\nverb = "retrieve"\nsystem = "touch made"\ndata = "{data}"\n'
    )
    with pytest.raises(QontextError, match="it asks to run the command touch"):
        api.run(tmp_path / "recipe.toml", out=tmp_path / "runs")
    assert not artifacts.is_artifact(tmp_path / "runs" / "search")
