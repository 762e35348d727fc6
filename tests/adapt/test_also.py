"""adapt beside the search that people have today."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.adapt.calls import adapt

from qontext import api
from qontext.frame import trust
from qontext.frame.errors import QontextError

SYSTEM = """
import json, re, sys
rows = [json.loads(line) for line in open({documents!r})]
for question in map(json.loads, sys.stdin):
    words = set(re.findall(r"\\w+", question["text"].lower()))
    rows.sort(key=lambda row: -len(words & set(re.findall(r"\\w+", (row["title"] + " " + row["text"]).lower()))))
    for rank, row in enumerate(rows[:10]):
        print(question["id"], "Q0", row["_id"], rank + 1, 10 - rank, "mine")
"""


@pytest.fixture
def system(reports: Path, tmp_path: Path) -> str:
    script = tmp_path / "system.py"
    script.write_text(SYSTEM.format(documents=str(reports)))
    return f"{sys.executable} {script}"


def test_what_people_have_is_measured_as_ours_is(
    reports: Path, small_encoder: Path, tmp_path: Path, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short: dict[str, Any] = {"budget": "10s"}
    result = adapt(reports, tmp_path / "made", small_encoder, also=[f"mine={system}"], **short)
    verdict = result["verdict"]
    scores = verdict["scores"]["generated"]
    assert (
        0.1 < scores["mine"]["nDCG@10"] <= 1 and verdict["system"] in scores and verdict["system"] != "mine"
    )
    compared = [pair for pair in verdict["differences"] if "mine" in (pair["a"], pair["b"])]
    assert {pair["a"] for pair in compared} | {pair["b"] for pair in compared} == set(scores)
    (sentence,) = [sentence for sentence in verdict["sentences"] if sentence.startswith("mine has ")]
    assert f"{scores['mine']['nDCG@10']:.3f}" in sentence and "than mine" in sentence
    assert "mine" in (tmp_path / "made" / "report" / "report.html").read_text()
    # Nothing is measured again.
    made = [path.stat().st_mtime_ns for path in sorted((tmp_path / "made" / "steps").glob("*/meta.json"))]
    again: Any = api.adapt(reports, encoder=small_encoder, out=tmp_path / "made", yes=True)
    assert again.summary["verdict"] == verdict
    assert made == [
        path.stat().st_mtime_ns for path in sorted((tmp_path / "made" / "steps").glob("*/meta.json"))
    ]
    # Elsewhere, the recipe asks to run a command.
    monkeypatch.setattr(trust.decided, "words", {str(small_encoder)})
    with pytest.raises(QontextError, match="it asks to run the command"):
        api.run(tmp_path / "made" / "recipe.toml", out=tmp_path / "elsewhere")


def test_bad_systems_end_before_any_work(reports: Path, small_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(QontextError, match="there is no such command"):
        adapt(reports, tmp_path / "made", small_encoder, also=["a=no-such-command"])
    assert not (tmp_path / "made" / "plan.json").exists()
