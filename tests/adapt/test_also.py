"""adapt beside the search that people have today."""

from __future__ import annotations

import json
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
words = set(re.findall(r"\\w+", sys.argv[1].lower()))
rows = [json.loads(line) for line in open({documents!r})]
rows.sort(key=lambda row: -len(words & set(re.findall(r"\\w+", (row["title"] + " " + row["text"]).lower()))))
print(json.dumps([{{"id": row["_id"], "score": 1}} for row in rows[:10]]))
"""


@pytest.fixture
def system(reports: Path, tmp_path: Path) -> str:
    script = tmp_path / "system.py"
    script.write_text(SYSTEM.format(documents=str(reports)))
    return f"{sys.executable} {script} {{question}}"


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
    assert "mine" in (tmp_path / "made" / "report" / "report.md").read_text()
    # The directory remembers that the user named it: it is not asked about, and nothing is measured again.
    monkeypatch.setattr(trust.decided, "words", set())
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


@pytest.mark.parametrize(
    ("also", "message"),
    [
        (["grep {question}"], "expected NAME=SYSTEM"),
        (["tokens=grep {question}"], "'tokens' is that of a system of Qontext"),
        (["a=cat {question}", "a=cat {question}"], "two systems have the name 'a'"),
        ([f"a={sys.executable} -c 'raise SystemExit(7)' {{question}} /nothing/QONTEXT"], None),
        ([f"a={sys.executable} -c 'raise SystemExit(\"no index\")' {{question}}"], "exit code 1: no index"),
        (["a=http://127.0.0.1:9"], "does not answer"),
    ],
)
def test_bad_systems_end_before_any_work(
    also: list[str], message: str | None, reports: Path, small_encoder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    from qontext.adapt import rates
    from qontext.queries.generators import chat

    class Measuring(Exception):
        pass

    def measure(*arguments: Any, **settings: Any) -> None:
        raise Measuring

    monkeypatch.setattr(rates, "measure", measure)
    monkeypatch.setattr(chat.Endpoint, "first_pause", 0.0)
    monkeypatch.setattr(chat.time, "sleep", lambda seconds: None)
    with pytest.raises(QontextError if message else Measuring, match=message):
        adapt(reports, tmp_path / "made", small_encoder, also=also)
    assert not (tmp_path / "made" / "plan.json").exists()
    assert json.loads(reports.read_text().splitlines()[0])
