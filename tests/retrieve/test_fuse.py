from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from qontext import Run, api, fuse
from qontext.data.runs import read_run
from qontext.frame.errors import QontextError
from qontext.retrieve.fuse import FuseConfig, RankedRows, tuned

FIRST = "q Q0 a 1 9 x\nq Q0 b 2 5 x\nq Q0 c 3 1 x\n"
SECOND = "q Q0 c 1 0.4 x\nq Q0 d 2 0.2 x\nr Q0 a 1 7 x\n"


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    for name, text in {"one": FIRST, "two": SECOND}.items():
        (tmp_path / name).write_text(text)
    return [tmp_path / "one", tmp_path / "two"]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("rrf", {"c": 1 / 63 + 1 / 61, "a": 1 / 61, "b": 1 / 62, "d": 1 / 62}),
        ("minmax", {"a": 1, "c": 1, "b": 0.5, "d": 0}),
        # std of (9, 5, 1) is √(32/3); of (0.4, 0.2) it is 0.1.
        ("zscore", {"a": 8 / (32 / 3) ** 0.5, "c": 2, "b": 4 / (32 / 3) ** 0.5, "d": 0}),
    ],
)
def test_scores_by_hand(runs: list[Path], tmp_path: Path, method: str, expected: dict[str, float]) -> None:
    run = read_run(api.fuse([str(r) for r in runs], method=method, out=tmp_path / "out").path)
    assert {hit.passage: hit.score for hit in run["q"]} == pytest.approx(expected)
    assert [hit.passage for hit in run["q"]] == sorted(expected, key=lambda id: (-expected[id], id))
    assert run["r"][0].score == pytest.approx(1 / 61 if method == "rrf" else 1)


def test_weights_are_tuned_on_judgments_and_passed_on(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("q\td\t1\n")
    both = [str(r) for r in runs]
    tuned = api.fuse(both, method="minmax", tune=tmp_path / "dev.tsv", measure="MRR@10", out=tmp_path / "t")
    # d stands second in the second run and nowhere in the first.
    assert tuned.summary["weights"] == [0, 1] and tuned.summary["MRR@10"] == 0.5
    passed = api.fuse(both, method="minmax", weights_from=tuned, out=tmp_path / "p")
    by_hand = api.fuse(both, method="minmax", weights=[0, 1], out=tmp_path / "g")
    assert passed.digest == by_hand.digest == tuned.digest


@pytest.mark.parametrize("settings", [{}, {"method": "zscore", "weights": (0.7, 0.3), "k": 2}])
def test_runs_in_memory_are_fused_as_by_the_command(
    runs: list[Path], tmp_path: Path, settings: dict[str, Any]
) -> None:
    fused = api.fuse(runs, out=tmp_path / "fused.trec", **settings)
    assert dict(fuse([Run.read(runs[0]), runs[1]], **settings)) == dict(Run.read(tmp_path / "fused.trec")), (
        fused
    )
    with pytest.raises(QontextError, match="got 1 weights for 2 runs"):
        fuse(runs, [1.0])
    with pytest.raises(QontextError, match="unknown method 'mean'"):
        fuse(runs, method="mean")  # type: ignore[arg-type]


def test_all_weights_on_the_grid_are_tried(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    rows = RankedRows([Run.read(runs[number % 2]) for number in range(3)], "zscore")
    fused = rows.fused
    monkeypatch.setattr(rows, "fused", lambda weights, k: tried.append(weights) or fused(weights, k))
    (runs[0].parent / "dev.tsv").write_text("q\td\t1\n")
    config = FuseConfig(runs=("a", "b", "c"), tune=str(runs[0].parent / "dev.tsv"))
    tuned(rows, config)
    grid = itertools.product(range(11), repeat=3)
    assert sorted(tried) == sorted(tuple(n / 10 for n in parts) for parts in grid if sum(parts) == 10)
