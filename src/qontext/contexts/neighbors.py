"""Contexts from the same document: `near`, `olap` and `rand` (CoT-MAE, section 3.2, without span corruption).

For a passage A of a document with passages P₀ … Pₙ:

    near  uniform over { the passage before A, the passage after A }
    rand  uniform over { P₀ … Pₙ } \\ {A}
    olap  A's last n sentences and what follows, until full;  n uniform in 1 … max(1, S // 2), S = A's sentences;
          from the last passage, backwards: what precedes, and A's first n sentences

The only passage of a document has no neighbor: its context is the passage itself, masked differently.
In token stores a document's passages are contiguous, so each context is one slice; its title comes before it.
"""

from __future__ import annotations

import numpy as np

from qontext.contexts.base import Ints, Slices, Sources
from qontext.training.randomness import below


def near(sources: Sources, passages: Ints, visits: Ints, seed: int) -> Slices:
    """An adjacent passage."""
    first, last = _document(sources, passages)
    after = below(2, seed, "near", passages, visits).astype(bool)
    after = np.where(passages == first, True, np.where(passages == last, False, after))
    neighbor = np.where(first == last, passages, passages + np.where(after, 1, -1))
    return Slices.of_passages(sources.passages, neighbor)


def rand(sources: Sources, passages: Ints, visits: Ints, seed: int) -> Slices:
    """Another passage of the document."""
    first, last = _document(sources, passages)
    other = first + below(last - first, seed, "rand", passages, visits)
    other += (other >= passages) & (first < last)
    return Slices.of_passages(sources.passages, other)


def olap(sources: Sources, passages: Ints, visits: Ints, seed: int) -> Slices:
    """A span that starts inside the passage and ends after it, or starts before the passage and ends inside it."""
    store, limit = sources.passages, sources.room(passages)
    offsets, sentences = store.offsets, store.sentences
    first, last = _document(sources, passages)
    begin, end = offsets[passages], offsets[passages + 1]
    low, high = (
        np.searchsorted(sentences, begin),
        np.searchsorted(sentences, end),
    )  # A's sentences, [low, high)
    shared = 1 + below(np.maximum(1, (high - low) // 2), seed, "olap", passages, visits)

    # Forwards: from A's last `shared` sentences to the last sentence end that fits.
    document_end = offsets[last + 1]
    from_here = sentences[np.maximum(high - shared, low)]
    cut = sentences[np.searchsorted(sentences, np.minimum(from_here + limit, store.offsets[-1]), "right") - 1]
    to_there = np.where(
        document_end <= from_here + limit, document_end, np.where(cut > end, cut, from_here + limit)
    )

    # Backwards: from the first sentence start that fits to the end of A's first `shared` sentences.
    document_begin = offsets[first]
    back_end = np.append(sentences, offsets[-1])[np.minimum(low + shared, high)]
    room = np.maximum(back_end - limit, 0)
    start = sentences[np.minimum(np.searchsorted(sentences, room), len(sentences) - 1)]
    back_begin = np.where(document_begin >= room, document_begin, np.where(start < begin, start, room))

    alone, backwards = first == last, passages == last
    return Slices(
        np.where(alone, begin, np.where(backwards, back_begin, from_here)),
        np.where(alone, end, np.where(backwards, back_end, to_there)),
        np.zeros(len(passages), bool),
    )


def _document(sources: Sources, passages: Ints) -> tuple[Ints, Ints]:
    """The first and the last passage of each passage's document."""
    store = sources.passages
    group = store.group_of[passages]
    return store.groups[group], store.groups[group + 1] - 1
