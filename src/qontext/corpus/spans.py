"""Sentences → spans of at most a number of tokens, cutting *before* the sentence that would overflow.

    span k = the longest run of next sentences with  Σ tokens + 2 ≤ target_k
    target_k = max_tokens, or with probability p drawn uniformly from [2, max_tokens]

The 2 are the special tokens. A single sentence that is longer than the target is a separate span; if it is
longer than `max_tokens`, it is *overlong*: it is not cut here, but cropped when it is read.
"""

from __future__ import annotations

import random
from typing import NamedTuple

SPECIAL_TOKENS = 2


class Span(NamedTuple):
    """Sentences first … last - 1, and their tokens with the special ones."""

    first: int
    last: int
    tokens: int


def group(
    sentence_tokens: list[int], max_tokens: int, short_probability: float = 0.0, key: str = ""
) -> list[Span]:
    """Group sentences greedily; short targets are drawn from `key` (seed and document)."""
    dice = random.Random(key) if short_probability else None
    spans: list[Span] = []
    first, tokens = 0, SPECIAL_TOKENS
    target = _target(max_tokens, short_probability, dice)
    for i, count in enumerate(sentence_tokens):
        if i > first and tokens + count > target:
            spans.append(Span(first, i, tokens))
            first, tokens = i, SPECIAL_TOKENS
            target = _target(max_tokens, short_probability, dice)
        tokens += count
    if sentence_tokens:
        spans.append(Span(first, len(sentence_tokens), tokens))
    return spans


def _target(max_tokens: int, short_probability: float, dice: random.Random | None) -> int:
    if dice is not None and dice.random() < short_probability:
        return dice.randint(2, max_tokens)
    return max_tokens
