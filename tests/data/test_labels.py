"""Labels that name documents: of their passages, the one that answers."""

from __future__ import annotations

import pytest

from qontext.data.collection import Passage
from qontext.data.labels import closest


@pytest.mark.parametrize(
    ("question", "texts"),
    [
        ("how is the mill driven?", ["It was sold in 1890.", "Water from the river drives the mill."]),
        ("如何重置密码？", ["请先登录系统再打开设置页面。", "点击链接即可重置您的密码。"]),
        (
            "Where is the giant's castle?",
            ["The sea is where it always was.", "A castle of a giant stood where the crows sat."],
        ),
        ("Qui a fermé l'usine ?", ["La ville a fermé le pont.", "Elle a fermé une usine."]),
        ("रोटी कैसे बनती है?", ["रेत के टीले", "रोटी गेहूँ से बनती है"]),
    ],
)
def test_the_passage_with_the_most_words_of_the_question(question: str, texts: list[str]) -> None:
    passages = [Passage(f"d#{n}", "", text, "d") for n, text in enumerate(texts)]
    assert closest(question, passages).id == "d#1"
