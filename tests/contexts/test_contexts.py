"""Contexts: each is the stretch of text that its rule says, drawn anew at each visit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qontext.contexts import Context, Slices, Sources, match_queries
from qontext.corpus.store import TokenStore
from qontext.frame.errors import QontextError
from qontext.training.randomness import uniform


def store(documents: list[list[list[int]]], names: list[str] | None = None) -> TokenStore:
    """A store from documents → passages → sentence lengths. Every token is a word; ids count up."""
    passages = [passage for document in documents for passage in document]
    lengths = [sum(passage) for passage in passages]
    sentences = np.cumsum([0, *(n for passage in passages for n in passage)])
    total = int(sentences[-1])
    return TokenStore(
        ids=np.arange(total, dtype=np.uint32),
        word_starts=np.ones(total, bool),
        sentences=sentences[:-1].astype(np.int64),
        offsets=np.cumsum([0, *lengths]).astype(np.int64),
        groups=np.cumsum([0, *(len(document) for document in documents)]).astype(np.int64),
        names=pa.array(names or [f"p{n}" for n in range(len(passages))]),
    )


DOCUMENTS = [[[4, 5], [6, 3, 2], [7]], [[9]], [[2, 2, 2, 2], [3, 3, 3], [5, 1], [8]]]
ALL = np.arange(8)


def draws(name: str, sources: Sources, passages: Any = ALL, visits: int = 300) -> list[list[tuple[int, int]]]:
    """For each passage, its contexts over many visits."""
    context = Context(name, sources)
    spans_of: list[list[tuple[int, int]]] = [[] for _ in passages]
    for visit in range(visits):
        drawn = context.draw(passages, np.full(len(passages), visit), seed=1, step=visit)
        for row, span in zip(spans_of, zip(drawn.begin.tolist(), drawn.end.tolist())):
            row.append(span)
    return spans_of


def spans(one: TokenStore, passages: list[int]) -> set[tuple[int, int]]:
    return {(int(one.offsets[p]), int(one.offsets[p + 1])) for p in passages}


def test_near_is_an_adjacent_passage_with_equal_chances() -> None:
    one = store(DOCUMENTS)
    drawn_spans = draws("near", Sources(one, 30))
    neighbors = {0: [1], 1: [0, 2], 2: [1], 3: [3], 4: [5], 5: [4, 6], 6: [5, 7], 7: [6]}
    for passage, expected in neighbors.items():
        assert set(drawn_spans[passage]) == spans(one, expected)
    before = sum(span in spans(one, [0]) for span in drawn_spans[1])
    assert 120 < before < 180


def test_rand_is_any_other_passage_of_the_document() -> None:
    one = store(DOCUMENTS)
    drawn_spans = draws("rand", Sources(one, 30))
    others = {0: [1, 2], 1: [0, 2], 2: [0, 1], 3: [3], 4: [5, 6, 7], 5: [4, 6, 7], 6: [4, 5, 7], 7: [4, 5, 6]}
    for passage, expected in others.items():
        assert set(drawn_spans[passage]) == spans(one, expected)
    counts = [drawn_spans[4].count(span) for span in spans(one, [5, 6, 7])]
    assert min(counts) > 70


def test_olap_by_hand() -> None:
    # passages: [2 2 2 2] [3 3 3] [5 1] [8] at 0, 8, 17, 23 … 31; limit 12 tokens
    one = store([DOCUMENTS[2]])
    drawn_spans = [set(row) for row in draws("olap", Sources(one, 12), np.arange(4))]
    # from passage 0: its last 1 or 2 sentences, then whole sentences while 12 tokens are not exceeded
    assert drawn_spans[0] == {(6, 17), (4, 14)}
    # passage 1 has 3 sentences: half of 3 is 1: from its last sentence, + [5] [1]
    assert drawn_spans[1] == {(14, 23)}
    # passage 2: from its last sentence [1], + [8]
    assert drawn_spans[2] == {(22, 31)}
    # the last passage mirrors: its first sentence [8], and what precedes while it fits: [1]
    assert drawn_spans[3] == {(22, 31)}


@settings(max_examples=150)
@given(
    st.lists(
        st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=6),
        min_size=1,
        max_size=5,
    ),
    st.integers(8, 60),
    st.integers(0, 1000),
)
def test_olap_shares_text_and_adds_some_and_stays_in_the_document(
    documents: list[list[list[int]]], limit: int, visit: int
) -> None:
    one = store(documents)
    passages = np.arange(len(one))
    drawn = Context("olap", Sources(one, limit)).draw(passages, np.full(len(one), visit), seed=3, step=0)
    for passage, begin, end in zip(passages, drawn.begin, drawn.end):
        group = one.group_of[passage]
        first, last = one.groups[group], one.groups[group + 1] - 1
        a, b = one.offsets[passage], one.offsets[passage + 1]
        assert one.offsets[first] <= begin < end <= one.offsets[last + 1]
        if first == last:
            assert (begin, end) == (a, b)
            continue
        assert min(end, b) > max(begin, a), "shares text with the passage"
        assert (begin, end) != (a, b) or b - a >= limit, "adds some, unless what is shared fills it"
        if b - a <= limit:  # an over-long passage is cropped when it is read
            assert end - begin <= max(limit, b - a)


def queries_for(one: TokenStore, counts: list[int]) -> TokenStore:
    """So many queries of 3 tokens for each passage; passages with none are left out."""
    having = [n for n, count in enumerate(counts) if count]
    groups = np.cumsum([0, *(counts[n] for n in having)]).astype(np.int64)
    offsets = np.arange(0, 3 * groups[-1] + 1, 3).astype(np.int64)
    return TokenStore(
        np.arange(offsets[-1], dtype=np.uint32),
        np.ones(offsets[-1], bool),
        offsets[:-1],
        offsets,
        groups,
        one.names.take(pa.array(having)),
    )


def with_queries(counts: list[int], **settings: Any) -> Sources:
    one = store(DOCUMENTS)
    queries = queries_for(one, counts)
    return Sources(one, 30, queries, match_queries(one, queries), **settings)


def test_query_draws_each_of_the_passages_own_queries_equally() -> None:
    sources = with_queries([2, 3, 1, 0, 5, 0, 1, 1])
    drawn_spans = draws("query", sources, np.array([0, 1, 4]))
    for row, (first, count) in zip(drawn_spans, ((0, 2), (2, 3), (6, 5))):
        assert set(row) == {(3 * q, 3 * q + 3) for q in range(first, first + count)}
        assert min(row.count(span) for span in set(row)) > 300 / count * 0.6


def test_fewer_candidates_are_the_first_ones() -> None:
    drawn_spans = draws("query", with_queries([5] * 8, candidates=2))
    assert set(drawn_spans[1]) == {(15, 18), (18, 21)}


def test_weights_say_how_often_a_query_is_drawn() -> None:
    weights = np.tile([0.0, 1.0, 3.0], 8)
    row = draws("query", with_queries([3] * 8, query_weights=weights), visits=2000)[2]
    shares = [row.count((3 * q, 3 * q + 3)) / 2000 for q in (6, 7, 8)]
    assert shares == pytest.approx([0, 0.25, 0.75], abs=0.04)


def test_a_step_has_queries_or_passages_in_their_shares() -> None:
    sources = with_queries([1] * 7 + [0])
    context = Context("query+near+olap+rand", sources)
    steps = [context.draw(ALL, np.zeros(8), seed=2, step=step) for step in range(1000)]
    has_queries = np.array([drawn.is_query for drawn in steps])
    assert (has_queries[:, :7] == has_queries[:, :1]).all(), "all contexts of a step are of one kind"
    assert has_queries[:, 0].mean() == pytest.approx(0.5, abs=0.05)
    assert not has_queries[:, 7].any(), "a passage without queries gets another passage"


def test_mixed_contexts_by_hand() -> None:
    """The steps that have queries, and which neighbors the passages have in the others, from the hashes of the draws."""
    sources = with_queries([1] * 8)
    one, store_of_queries = sources.passages, sources.queries
    assert store_of_queries is not None
    context = Context("query+near+rand", sources)
    rules = {name: Context(name, sources) for name in ("query", "near", "rand")}
    for step in range(6):
        visits = np.full(8, step // 3)
        drawn = context.draw(ALL, visits, seed=5, step=step)
        parts = {name: rule.draw(ALL, visits, 5, step) for name, rule in rules.items()}
        if uniform(5, "queries", step) < 0.5:
            expected = parts["query"]
        else:
            is_rand = uniform(5, "rule", ALL, visits) >= 0.5
            expected = Slices.where(is_rand, parts["rand"], parts["near"])
            assert is_rand.any() and not is_rand.all()
            assert set(spans(one, list(range(8)))) >= set(zip(drawn.begin.tolist(), drawn.end.tolist()))
        assert drawn.begin.tolist() == expected.begin.tolist()
        assert drawn.end.tolist() == expected.end.tolist()
        assert drawn.is_query.tolist() == expected.is_query.tolist()


def test_mixed_is_a_name_of_query_and_rand() -> None:
    sources = with_queries([1] * 8)
    for step in range(4):
        one, other = (
            Context(name, sources).draw(ALL, np.zeros(8), 3, step) for name in ("mixed", "query+rand")
        )
        assert one.begin.tolist() == other.begin.tolist()


def test_a_mixture_draws_every_rule() -> None:
    one = store(DOCUMENTS)
    row = set(draws("near+olap+rand", Sources(one, 12), np.array([4]))[0])
    assert spans(one, [5]) <= row and spans(one, [7]) <= row
    assert any(one.offsets[4] < begin < one.offsets[5] for begin, _ in row), "an overlapping stretch"


def test_an_empty_neighbor_is_replaced_by_the_passage_itself() -> None:
    one = store([[[4], [0], [5]]])
    assert set(draws("near", Sources(one, 30), np.array([0]))[0]) == {(0, 4)}


def test_changing_the_queries_changes_that_passages_context_alone() -> None:
    before, after = with_queries([2] * 8), with_queries([2, 2, 2, 2, 7, 2, 2, 2])
    a, b = (Context("query", s).draw(ALL, np.full(8, 5), seed=1, step=0) for s in (before, after))

    def within(s: Sources, drawn: Any) -> Any:
        return drawn.begin // 3 - s.queries.groups[:-1]  # type: ignore[union-attr]

    same = within(before, a) == within(after, b)
    assert same[[0, 1, 2, 3, 5, 6, 7]].all()


def test_what_cannot_be_drawn_is_said() -> None:
    one = store(DOCUMENTS)
    with pytest.raises(QontextError, match=r"unknown context 'nea'.*Did you mean 'near'"):
        Context("nea", Sources(one, 30))
    with pytest.raises(QontextError, match="needs queries"):
        Context("query", Sources(one, 30))
    others = store(DOCUMENTS, [f"other{n}" for n in range(8)])
    with pytest.raises(QontextError, match="no query belongs to any of these passages"):
        match_queries(one, queries_for(others, [1] * 8))
