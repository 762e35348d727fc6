"""Artifacts to browse: what is listed, curves, differences."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.serve.conftest import Running, World

from qontext.frame.artifacts import open_artifact
from qontext.serve.runs import Curve, Runs, curves, differences, path_of, shown


def test_artifacts_are_listed_by_name(world: World, tmp_path: Path) -> None:
    shutil.copytree(world / "mine" / "steps", tmp_path / "runs" / "a")
    shutil.copytree(world / "bm25", tmp_path / "runs" / "b")
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "meta.json").write_text("{")
    shutil.copytree(world / "bm25", tmp_path / "runs" / ".hidden")
    shutil.copytree(world / "bm25", tmp_path / "runs" / "1" / "2" / "3" / "4" / "5")
    artifacts = Runs(tmp_path / "runs").all()
    assert list(artifacts) == ["a/bm25-a", "a/bm25-b", "a/score-bm25-a", "a/score-bm25-b", "b"]
    assert Runs(tmp_path / "nothing").all() == {}


def test_two_runs_differ_in_what_was_set(world: World) -> None:
    steps = world / "mine" / "steps"
    rows = differences(open_artifact(steps / "bm25-a"), open_artifact(steps / "bm25-b"))
    assert ("settings", "b", 0.4, 0.9) in rows
    assert [name for section, name, *_ in rows if section == "settings"] == ["b"]
    assert any(section == "results" for section, *_ in rows)


def test_losses_become_curves(world: World, tmp_path: Path) -> None:
    shutil.copytree(world / "bm25", tmp_path / "run")
    (tmp_path / "run" / "logs").mkdir()
    lines = [
        {"phase": "train", "step": step, "losses": {"mlm": loss, "total": 2 * loss}, "lr": 0.1}
        for step, loss in ((1, 4.0), (2, 3.0), (3, 2.0))
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "run" / "logs" / "metrics.jsonl").write_text(text)
    drawn = curves(open_artifact(tmp_path / "run"))
    assert drawn[0] == Curve("train", "mlm", [(1, 4.0), (2, 3.0), (3, 2.0)]) and len(drawn) == 2
    assert path_of(drawn[0], 100, 50) == "M0.0,0.0 L50.0,25.0 L100.0,50.0"
    assert path_of(Curve("train", "flat", [(1, 1.0), (2, 1.0)]), 100, 50) == "M0.0,0.0 L100.0,0.0"
    assert curves(open_artifact(world / "bm25")) == []


def test_values_are_shown_as_text() -> None:
    values = [None, True, 12345, 0.12345678, [1, 2.5], "a"]
    assert [shown(value) for value in values] == ["–", "yes", "12,345", "0.123457", "1, 2.5", "a"]


def test_the_pages_show_what_was_run(site: Running) -> None:
    index = site.http.get("/runs").text
    assert "steps/score-bm25-a" in index and ">report<" in index and "nDCG@10" in index
    page = site.http.get("/runs/show", params={"run": "steps/bm25-a"}).text
    assert "qontext search" in page and "analyzer" in page
    report = site.http.get("/runs/show", params={"run": "report"}).text
    assert "## " in report and "<pre" in report
    both = site.http.get("/runs/compare", params={"a": "steps/bm25-a", "b": "steps/bm25-b"}).text
    assert "0.4" in both and "0.9" in both and "+0.5" in both
    assert site.http.get("/runs/compare", params={"a": "steps/bm25-a"}).status_code == 404
