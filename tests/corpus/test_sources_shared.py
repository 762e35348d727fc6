"""The development data: every set loads, and the counts are those that it is described with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qontext.corpus.sources import FieldNames, Problem, open_source


@pytest.mark.parametrize(
    ("name", "documents", "passages"),
    [
        ("squad_pool", 3_242, 23_343),
        ("squadshifts_wiki_pool", 3_222, 21_582),
        ("fairytaleqa", 278, 4_094),
        ("medquad", 5_473, 16_350),
        ("cranfield", 1_400, 1_400),
        ("vaswani", 11_429, 11_429),
        ("wiki_unlabeled", 11_122, 105_659),
    ],
)
def test_counts(shared_data: Callable[[str], Path], name: str, documents: int, passages: int) -> None:
    source = open_source(str(shared_data(name)), fields=FieldNames())
    counts = [0, 0]
    passage_ids: set[str] = set()
    for item in source.documents():
        assert not isinstance(item, Problem), item
        counts[0] += 1
        counts[1] += len(item.passages)
        passage_ids.update(id for id, _ in item.passages)
    assert source.has_passages
    assert counts == [documents, passages]
    assert len(passage_ids) == passages
    assert source.bytes_read == source.bytes_total
