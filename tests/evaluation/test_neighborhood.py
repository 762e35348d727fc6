from __future__ import annotations

import pytest

from qontext.data.records import Hit
from qontext.data.runs import Run
from qontext.evaluation.measures import neighborhood_recall
from qontext.frame.errors import QontextError


def run_of(**rankings: str) -> Run:
    return Run.of(
        Hit(q, p, float(-rank)) for q, passages in rankings.items() for rank, p in enumerate(passages)
    )


def test_by_hand() -> None:
    stage1, stage2 = run_of(q1="abcdef", q2="xyz"), run_of(q1="cbaq", q2="mno", q3="a")
    recall = neighborhood_recall(stage1, stage2, n=2, depths=[1, 2, 3])
    # q1: stage 2's top 2 are c, b; stage 1 has b at rank 2 and c at rank 3. Its a, at
    # rank 1, is not among them. q2 shares nothing, q3 is unknown.
    assert recall[1].tolist() == [0, 0, 0]
    assert recall[2].tolist() == [1 / 2, 0, 0]
    assert recall[3].tolist() == [1, 0, 0]


def test_a_run_foresees_itself() -> None:
    run = run_of(q1="abcd", q2="efgh")
    assert neighborhood_recall(run, run, n=3, depths=[3])[3].tolist() == [1, 1]


def test_nothing_in_common_is_an_error() -> None:
    with pytest.raises(QontextError, match="no query in common"):
        neighborhood_recall(run_of(q1="a"), run_of(q2="a"), n=1, depths=[1])
