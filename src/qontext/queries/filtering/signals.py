"""Signals for whether a text (a query, or another passage) matches a passage. Each is a number per pair.

- ``overlap``   the share of the text's content words, stemmed, that are in the passage or its title
- ``rank`` rank of the passage in a search with the text, by BM25 or a dense retriever; 0 beyond the depth
  (round trip)
- ``back_rank`` rank of the text among all texts in a search with the passage (reverse direction)
- ``rerank`` probability of the pair by a cross-encoder

Shapes: N pairs, U passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qontext.data.collection import Passage
from qontext.queries.filtering.lookup import joined
from qontext.queries.filtering.searchers import TextIndex
from qontext.queries.words import READ_CHARACTERS, Array, content_words
from qontext.retrieve.analyzer import term_of

PAIRS = 4096
RANKED = 4_000_000
"""Number of ranks to examine together."""


def overlap(texts: Sequence[str], passages: Sequence[str]) -> Array:
    """[N] between 0 and 1; a text without a content word has 0."""
    stem, stems = term_of("english"), dict[str, set[str]]()
    shares = np.zeros(len(texts), np.float32)
    for n, (text, passage) in enumerate(zip(texts, passages)):
        passage_stems = stems.get(passage)
        if passage_stems is None:
            stems.clear()  # pairs of one passage are consecutive
            passage_stems = stems[passage] = set(map(stem, content_words(passage[:READ_CHARACTERS])))
        query_stems = {stem(word) for word in content_words(text[:READ_CHARACTERS])}
        shares[n] = len(query_stems & passage_stems) / len(query_stems) if query_stems else 0.0
    return shares


def rank(
    queries: Any, targets: Array, searcher: TextIndex, depth: int, *, hide: Array | None = None
) -> Array:
    """[N] the rank (from 1) of number `targets[n]` in the search for `queries[n]`; 0 beyond `depth`. `hide[n]`
    is a text that is excluded from the n-th ranking, such as the search input.
    """
    k = depth + (hide is not None)
    ranks = np.zeros(len(targets), np.int32)
    for rows in _slices(len(targets), k):
        numbers = searcher.top(queries[rows], k)
        live = numbers >= 0
        if hide is not None:
            live &= numbers != hide[rows, None]
        place = np.cumsum(live, axis=1)
        here = live & (numbers == targets[rows, None]) & (place <= depth)
        ranks[rows] = (place * here).max(axis=1)
    return ranks


def back_ranks(queries: Any, owner: Array, first: int, backward: TextIndex, most: Array) -> Array:
    """[N] the rank (from 1) of each text in the search with its own passage, among all texts; 0 beyond the
    depth. The N texts are numbered from `first` on; text n belongs to passage `queries[owner[n]]` of the U
    passages, each searched to rank `most[u]`.
    """
    ranks = np.zeros(len(owner), np.int32)
    for rows in _slices(len(most), int(most.max(initial=1))):
        numbers = backward.top(queries[rows], int(most[rows].max())) - first
        inside = (numbers >= 0) & (numbers < len(owner))
        of = np.arange(len(most))[rows, None]
        mine = inside & (owner[np.where(inside, numbers, 0)] == of)
        row, column = np.nonzero(mine & (np.arange(numbers.shape[1]) < most[rows, None]))
        ranks[numbers[row, column]] = column + 1
    return ranks


def probabilities(reranker: Any, texts: Sequence[Passage | str], passages: Sequence[Passage | str]) -> Array:
    """[N] the probabilities of the pairs by a `CrossEncoder`, by whose rule titles are read."""
    texts, passages = (joined(some, reranker.titles.between) for some in (texts, passages))
    scores = np.zeros(len(texts), np.float32)
    for start in range(0, len(texts), PAIRS):
        rows = slice(start, start + PAIRS)
        pairs = [(text, passage[:READ_CHARACTERS]) for text, passage in zip(texts[rows], passages[rows])]
        scores[rows] = reranker.score(pairs)
    chances: Array = 0.5 + 0.5 * np.tanh(scores / 2)  # the logistic function, without overflow
    return chances


def _slices(count: int, k: int) -> list[slice]:
    size = max(1, RANKED // k)
    return [slice(start, start + size) for start in range(0, count, size)]
