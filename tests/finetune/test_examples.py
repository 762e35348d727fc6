"""Which passages a visit to a query shows: by hand."""

from __future__ import annotations

import numpy as np
import pytest

from qontext.data.runs import Run
from qontext.finetune.examples import Examples
from qontext.finetune.negatives.groups import Group
from qontext.frame.errors import QontextError


def examples(*groups: Group, teacher: Run | None = None, keys: dict[str, int] | None = None) -> Examples:
    result = Examples(groups, "here", teacher)
    result.attach_passage_keys(
        np.array([(keys or {}).get(id, 1000 + n) for id, n in result.number.items()], np.int64)
    )
    return result


SEVEN = Group("q", "a question", ["a", "b", "c"], [f"n{i}" for i in range(7)])


def shown(rows: Examples, epoch: int, per_visit: int, seed: int = 1, query: int = 0) -> list[str]:
    names = {number: id for id, number in rows.number.items()}
    return [names[n] for n in rows.visit(query, epoch, per_visit, seed)[0].tolist()]


def test_the_window_slides_and_positives_rotate() -> None:
    rows = examples(SEVEN)
    visits = [shown(rows, epoch, 4) for epoch in range(7)]
    assert [v[0] for v in visits[:3]] == [v[0] for v in visits[3:6]]
    assert {v[0] for v in visits[:3]} == {"a", "b", "c"}
    walked = [p for v in visits for p in v[1:]]
    assert set(walked[:7]) == set(SEVEN.negatives), "every negative is seen before one is seen again"
    assert walked[7:14] == walked[:7] == walked[14:]
    assert all(len(set(v)) == 4 for v in visits)


def test_a_query_shows_the_same_whatever_stands_beside_it() -> None:
    alone, beside = examples(SEVEN), examples(Group("r", "another", ["x"], ["y"]), SEVEN)
    for epoch in range(4):
        assert shown(alone, epoch, 4) == shown(beside, epoch, 4, query=1)
    assert shown(alone, 0, 8) != shown(alone, 0, 8, seed=2)


def test_too_few_negatives_are_filled_up_from_all_passages() -> None:
    rows = examples(Group("few", "short of negatives", ["p"], ["n"]), SEVEN)
    assert rows.left_out(4) == {"queries_filled_with_random_passages": 1}
    draws = [shown(rows, epoch, 4) for epoch in range(20)]
    assert all(v[:2] == ["p", "n"] for v in draws)
    assert len({p for v in draws for p in v[2:]}) > 5
    assert rows.passages_per_visit(16) == 8
    assert examples(Group("q", "text", ["p"], [])).passages_per_visit(16) == 1


def test_what_says_the_same_as_a_positive_is_no_negative() -> None:
    same = Group("q", "text", ["p"], ["twin", "p", "n"])
    other = Group("r", " text ", ["r"], ["n", "p"])  # the same question under another id
    rows = examples(same, other, keys={"p": 7, "twin": 7, "r": 8})
    assert [len(row.negatives) for row in rows.rows] == [1, 1]
    assert [keys.tolist() for keys in rows.known] == [[7, 8], [7, 8]]


def test_a_teacher_leaves_out_what_it_did_not_score() -> None:
    rows = [("q", "b", 2.0), ("q", "n1", 1.0), ("q", "n4", -1.0)]
    loaded = examples(SEVEN, teacher=Run.from_columns(*zip(*rows)))
    passages, scores = loaded.visit(0, 3, 3, 1)
    assert dict(zip(passages.tolist(), scores.tolist())) == {
        loaded.number["b"]: 2.0,
        loaded.number["n1"]: 1.0,
        loaded.number["n4"]: -1.0,
    }
    assert loaded.unscored == 7
    with pytest.raises(
        QontextError, match=r"here: the teacher scored no positive of the query 'q'.*rerank GROUPS"
    ):
        examples(SEVEN, teacher=Run.from_columns(*zip(*rows[1:])))
    with pytest.raises(QontextError, match="scored no negative"):
        examples(SEVEN, teacher=Run.from_columns(*zip(*rows[:1])))


def test_a_positive_that_a_teacher_did_not_score_stays_a_positive() -> None:
    rows = [("q", "b", 2.0), ("q", "n1", 1.0)]
    loaded = examples(SEVEN, teacher=Run.from_columns(*zip(*rows)), keys={"a": 1, "b": 2, "c": 3, "n1": 4})
    assert loaded.known[0].tolist() == [1, 2, 3] and len(loaded.rows[0].positives) == 1
    names = np.array([loaded.number[id] for id in ("a", "b", "c", "n1")])
    assert loaded.is_known_positive(0, names).tolist() == [True, True, True, False]
