"""Whole-word masking, vectorized over concatenated texts (BERT; rates per objective).

A text of n tokens gets max(1, `rate`·n) masked tokens in expectation, at least one (none with a rate of 0). Its words
are visited in random order and taken while they fit; the word that would overflow is taken with the probability that
makes the expectation exact. A first word that would overflow and is not taken is replaced by a shortest word, so the
expectation is exceeded only if the shortest word of the text alone is longer. Of the masked tokens 80 % become [MASK],
10 % a random token, 10 % are unchanged.

At rate 0.15 a text of fewer than 7 tokens has 1 masked token: 20 % of 5, 33 % of 3. The released code of Condenser and
CoT-MAE has the same minimum; it rounds rate·n and skips every word that overflows, so that long words are masked less.

All draws are functions of a text's key and the token's position, so masks do not depend on the rest of the
batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qontext.models.folder import TextKind
from qontext.models.tokenizer import Frame, frame_of
from qontext.training.randomness import U64, below, uniform

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer properties for masking: its size and its special ids, -1 for one that it does not have; and the ids
    around a passage and a query, by default [CLS] and [SEP]."""

    size: int
    mask: int
    cls: int
    sep: int
    pad: int
    special: tuple[int, ...]
    around: tuple[Frame, Frame] | None = None

    @staticmethod
    def of(tokenizer: Any, prompts: Mapping[TextKind, str] = MappingProxyType({})) -> Vocabulary:
        ids = {
            name: getattr(tokenizer, f"{name}_token_id")
            for name in ("mask", "cls", "bos", "sep", "eos", "pad")
        }
        passage, query = (frame_of(tokenizer, prompts.get(kind, "")) for kind in ("passage", "query"))
        return Vocabulary(
            len(tokenizer),
            _or_none(ids["mask"]),
            _or_none(ids["cls"], ids["bos"]),
            _or_none(ids["sep"], ids["eos"]),
            _or_none(ids["pad"]),
            tuple(sorted(set(tokenizer.all_special_ids))),
            (passage, query),
        )

    def frames(self, *, decoded: bool = False) -> tuple[Frame, Frame]:
        """The ids around a passage and a query. Before a text that is decoded stands nothing but the place of the vector, if
        the text does not begin with such a token."""
        frames = self.around or (Frame((self.cls,), (self.sep,)),) * 2
        if decoded and self.mask < 0:
            frames = frames[0]._replace(before=(self.pad,)), frames[1]._replace(before=(self.pad,))
        return frames


def _or_none(*ids: int | None) -> int:
    return next((id for id in ids if id is not None), -1)


def choose_words(
    word_starts: NDArray[np.bool_], lengths: NDArray[np.int64], rate: float, keys: U64, seed: int
) -> NDArray[np.bool_]:
    """The mask of the tokens to hide: flat [sum of lengths], whole words. `keys` has one number per text."""
    begins = np.cumsum(lengths) - lengths
    row_of_token = np.repeat(np.arange(len(lengths)), lengths)
    starts = word_starts.copy()
    starts[begins[lengths > 0]] = True  # a cropped text may begin inside a word
    word_of_token = np.cumsum(starts) - 1
    first_token = np.flatnonzero(starts)
    row = row_of_token[first_token]
    size = np.diff(np.append(first_token, len(starts)))

    dice = uniform(seed, "mask", keys[row], first_token - begins[row])
    order = np.lexsort((dice, row))
    ordered_row, ordered_size = row[order], size[order]
    total = np.cumsum(ordered_size) - ordered_size
    row_first = np.searchsorted(ordered_row, np.arange(len(lengths)))
    before = (
        total - total[np.minimum(row_first, max(len(total) - 1, 0))][ordered_row] if len(total) else total
    )
    room = np.maximum(rate * lengths, 1.0 if rate > 0 else 0.0)[ordered_row] - before
    overflow = uniform(seed, "mask overflow", keys[ordered_row])
    shortest = np.full(len(lengths), np.iinfo(np.int64).max)
    np.minimum.at(shortest, row, size)
    # A first word that overflows competes with a shortest one, which is sure to be taken otherwise.
    sure = np.where(before == 0, shortest[ordered_row], 0)
    is_masked = (ordered_size <= room) | (overflow * (ordered_size - sure) < room - sure)

    is_bare = (np.bincount(ordered_row[is_masked], minlength=len(lengths)) == 0) & (rate > 0)
    instead = np.flatnonzero(is_bare[ordered_row] & (ordered_size == shortest[ordered_row]))
    is_masked[instead[np.unique(ordered_row[instead], return_index=True)[1]]] = True
    is_word_masked = np.zeros(len(size), bool)
    is_word_masked[order[is_masked]] = True
    of_tokens: NDArray[np.bool_] = is_word_masked[word_of_token]
    return of_tokens


def corrupt(
    ids: NDArray[np.int64],
    is_masked: NDArray[np.bool_],
    lengths: NDArray[np.int64],
    keys: U64,
    seed: int,
    words: Vocabulary,
) -> NDArray[np.int64]:
    """Replace masked ids by [MASK] or a random ordinary token, or keep them."""
    place = np.flatnonzero(is_masked)
    row = np.repeat(np.arange(len(lengths)), lengths)[place]
    within = place - (np.cumsum(lengths) - lengths)[row]
    dice = uniform(seed, "mask kind", keys[row], within)
    other = below(words.size - len(words.special), seed, "random token", keys[row], within)
    for special in words.special:  # ascending: skips each special id
        other += other >= special
    corrupted = ids.copy()
    corrupted[place] = np.where(
        dice < MASK_SHARE, words.mask, np.where(dice < MASK_SHARE + RANDOM_SHARE, other, ids[place])
    )
    return corrupted
