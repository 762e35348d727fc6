"""Spans: the greedy rule, by hand on small numbers and by property on any."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from qontext.corpus.sentences import SPECIAL_TOKENS, SentenceSpan, group

lengths = st.lists(st.integers(0, 60), max_size=60)


def test_a_span_is_cut_before_the_sentence_that_would_overflow() -> None:
    # 4 + 5 + 2 special = 11 fits into 12; with 2 more it would be 13.
    assert group([4, 5, 2, 8], 12) == [SentenceSpan(0, 2, 11), SentenceSpan(2, 4, 12)]


def test_a_sentence_over_the_limit_is_a_span_of_its_own() -> None:
    assert group([3, 50, 3, 3], 12) == [SentenceSpan(0, 1, 5), SentenceSpan(1, 2, 52), SentenceSpan(2, 4, 8)]


@given(lengths, st.integers(3, 80), st.sampled_from([0.0, 0.15, 1.0]), st.text(max_size=5))
def test_every_sentence_is_in_one_span_in_order_within_the_limit(
    sentences: list[int], limit: int, short: float, key: str
) -> None:
    spans = group(sentences, limit, short, key)
    assert [i for span in spans for i in range(span.first, span.last)] == list(range(len(sentences)))
    for span in spans:
        assert span.tokens == sum(sentences[span.first : span.last]) + SPECIAL_TOKENS
        assert span.tokens <= limit or span.last - span.first == 1


@given(lengths, st.integers(3, 80))
def test_spans_are_as_long_as_they_can_be(sentences: list[int], limit: int) -> None:
    spans = group(sentences, limit)
    for span, after in itertools.pairwise(spans):
        assert span.tokens + sentences[after.first] > limit


@given(lengths, st.integers(3, 80), st.text(max_size=5))
def test_short_spans_depend_on_the_key_alone(sentences: list[int], limit: int, key: str) -> None:
    assert group(sentences, limit, 0.5, key) == group(sentences, limit, 0.5, key)


def test_short_targets_are_drawn_uniformly_with_their_probability() -> None:
    """With sentences of one token, a span's length is its target's (never below one sentence)."""
    spans = group([1] * 200_000, 22, 0.5, "key")[:-1]
    lengths = [span.tokens for span in spans]
    full = sum(length == 22 for length in lengths) / len(lengths)
    assert abs(full - (0.5 + 0.5 / 21)) < 0.02
    short = [length for length in lengths if length < 22]
    assert set(short) == set(range(3, 22))
    # 2 and 3 both give one sentence; all other lengths are equally likely.
    assert abs(short.count(3) / len(short) - 2 / 20) < 0.02
    assert abs(short.count(12) / len(short) - 1 / 20) < 0.02
