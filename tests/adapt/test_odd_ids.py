"""adapt with ids as file names make them, with white space and control characters, to the last step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qontext import api
from qontext.data.collection import load_collection, read_passages
from qontext.retrieve.searcher import Searcher

ENDINGS = (
    " 1.md",
    "\t.md",
    "\n.md",
    "\u00a0.md",
    "\u2028.md",
    "\x1b[0m.md",
    "#.md",
    "\"'.md",
    "␠.md",
    "%20.md",
)


def name_of(number: int) -> str:
    return f"Report {number}{ENDINGS[number % len(ENDINGS)]}"


def test_files_with_white_space_in_their_names(
    report: Callable[[int], dict[str, str]], small_encoder: Path, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    for number in range(30):
        (tmp_path / "files" / name_of(number)).write_text(report(number)["text"], encoding="utf-8")
    labels: list[dict[str, Any]] = [
        {"query": f"Which masons repaired the bell of number {number}?", "document": name_of(number)}
        for number in range(30)
    ]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labels))
    result = api.adapt(
        tmp_path / "files",
        labels=tmp_path / "labels.jsonl",
        out=tmp_path / "made",
        encoder=small_encoder,
        budget="90s",
        yes=True,
    ).summary
    assert result["system"] in result["verdict"]["scores"]["test"]
    passages = {passage.id for passage in read_passages(tmp_path / "made" / "index" / "passages")}
    (measured,) = (path.parent for path in (tmp_path / "made").glob("steps/*/measured/corpus.jsonl"))
    collection = load_collection(measured)
    for split in collection.splits:
        judged = {passage for rows in collection.qrels(split).values() for passage in rows}
        assert judged and judged <= passages
    answers = Searcher(tmp_path / "made").search("lighthouse northern harbour storm", k=500)
    assert {answer.document for answer in answers} == {name_of(number) for number in range(30)}
