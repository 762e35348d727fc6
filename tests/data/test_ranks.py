"""Ranks that do not fit the scores are told; those that mean nothing are let be."""

from __future__ import annotations

from pathlib import Path

import pytest

from qontext.data.runs import read_run
from qontext.frame.errors import QontextError


def run_file(folder: Path, *rows: tuple[str, str, object, float]) -> Path:
    path = folder / "run.trec"
    path.write_text("".join(f"{q} Q0 {p} {rank} {score} x\n" for q, p, rank, score in rows))
    return path


def test_a_rank_twice_with_two_scores_is_two_runs(tmp_path: Path) -> None:
    rows = [("q", "a", 1, 2.0), ("q", "b", 2, 1.0), ("q", "c", 1, 9.0), ("q", "d", 2, 8.0)]
    with pytest.raises(
        QontextError, match=r"run\.trec:3: rank 1 occurs twice for query 'q', with scores 2 and 9"
    ):
        read_run(run_file(tmp_path, *rows))


def test_distances_are_not_taken_for_scores(tmp_path: Path) -> None:
    rows = [(q, p, rank, rank / 10) for q in "qr" for rank, p in enumerate("abc", 1)]
    with pytest.raises(QontextError, match="the scores are distances, or the ranks are reversed"):
        read_run(run_file(tmp_path, *rows))


@pytest.mark.parametrize("scores", [(9.5, 7.25, 3.0), (97, 95, 90)])
def test_swapped_columns_of_rank_and_score(tmp_path: Path, scores: tuple[float, ...]) -> None:
    rows = [("q", p, score, rank) for rank, (p, score) in enumerate(zip("abc", scores), 1)]
    with pytest.raises(QontextError, match="the rank and score columns are swapped"):
        read_run(run_file(tmp_path, *rows))


def test_new_ranks_beside_old_scores_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("q", "a", 2, 3.0), ("q", "b", 1, 2.0), ("q", "c", 3, 1.0), ("r", "a", 1, 1.0)]
    run = read_run(run_file(tmp_path, *rows))
    assert "ranks contradict scores for 1 of 2 queries, such as 'q'" in " ".join(
        capsys.readouterr().err.split()
    )
    assert [hit.passage for hit in run["q"]] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "ranks",
    [(1, 1, 3), (0, 0, 0), (7, 8, 9), ("-", "-", "-"), ("1.0", "2.0", "3.0")],
    ids=["ties", "placeholder", "later page", "no ranks", "fractions"],
)
def test_harmless_ranks_are_let_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ranks: tuple[object, ...]
) -> None:
    rows = [("q", p, rank, score) for p, rank, score in zip("abc", ranks, (2.0, 2.0, 1.0))]
    assert len(read_run(run_file(tmp_path, *rows))["q"]) == 3
    assert capsys.readouterr().err == ""


def test_queries_in_pieces_and_out_of_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("q", "a", 1, 3.0), ("r", "a", 2, 1.0), ("q", "b", 2, 2.0), ("r", "b", 1, 2.0)]
    assert [hit.passage for hit in read_run(run_file(tmp_path, *rows))["r"]] == ["b", "a"]
    assert capsys.readouterr().err == ""
    with pytest.raises(QontextError, match=r":4: rank 1 occurs twice for query 'q'"):
        read_run(run_file(tmp_path, *rows[:3], ("q", "c", 1, 1.0)))
