"""Masking: the right share, whole words, 80/10/10, aligned labels, new at each visit, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qontext.pretrain.masking import Vocabulary, choose_words, corrupt
from qontext.pretrain.texts import FlatTexts
from qontext.training.randomness import hashed

WORDS = Vocabulary(size=1000, mask=4, cls=2, sep=3, pad=0, special=(0, 1, 2, 3, 4))


def texts(
    count: int, seed: int = 0
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random ids, word starts and lengths of `count` texts."""
    dice = np.random.default_rng(seed)
    lengths = dice.integers(3, 150, count)
    starts = dice.random(lengths.sum()) < 0.8
    starts[np.cumsum(lengths) - lengths] = True
    return dice.integers(5, 1000, lengths.sum()), starts, lengths


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.45, 0.6])
def test_the_masked_share_is_the_rate(rate: float) -> None:
    _, starts, lengths = texts(4000)
    masked = choose_words(starts, lengths, rate, hashed(1, "key", np.arange(4000)), seed=1)
    assert masked.mean() == pytest.approx(rate, abs=0.004)
    # of short texts too, where rounding would show
    short = np.full(5000, 20)
    masked = choose_words(np.ones(100_000, bool), short, rate, hashed(1, "key", np.arange(5000)), seed=1)
    assert masked.mean() == pytest.approx(rate, abs=0.004)


@pytest.mark.parametrize(
    ("sizes", "rate", "tokens"),
    [
        ([1, 1, 1, 1, 1], 0.15, 1),  # at least one token: 20 %
        ([1, 3, 1], 0.15, 1),
        ([2, 1, 3, 2], 0.15, 1.2),  # 15 % of 8
        ([4, 1, 1, 4], 0.3, 3),
        ([2, 5, 5, 2], 0.2, 2.8),
        ([3, 2, 3], 0.15, 2),  # no word is shorter
        ([1] * 9 + [2] * 5 + [6], 0.15, 3.75),
    ],
)
def test_the_masked_share_of_a_short_text_is_the_rate_or_its_shortest_word(
    sizes: list[int], rate: float, tokens: float
) -> None:
    count, n = 30_000, sum(sizes)
    starts = np.zeros(n, bool)
    starts[np.cumsum([0, *sizes[:-1]])] = True
    masked = choose_words(
        np.tile(starts, count), np.full(count, n), rate, hashed(1, "key", np.arange(count)), seed=1
    ).reshape(count, n)
    assert masked.any(1).all()
    assert masked.sum(1).mean() == pytest.approx(tokens, rel=0.015)
    first = masked[:, np.flatnonzero(starts)].mean(0)
    for size in set(sizes):  # words of the same length are masked equally often
        alike = first[np.array(sizes) == size]
        assert alike.max() - alike.min() < 0.02


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20), st.floats(0.01, 1.0), st.integers(0, 99))
def test_words_are_masked_whole_and_every_text_has_one(lengths: list[int], rate: float, seed: int) -> None:
    sizes = np.asarray(lengths)
    starts = np.random.default_rng(seed).random(sizes.sum()) < 0.6
    starts[np.cumsum(sizes) - sizes] = True
    masked = choose_words(starts, sizes, rate, hashed(seed, "key", np.arange(len(sizes))), seed=seed)
    word = np.cumsum(starts) - 1
    per_word = [set(masked[word == w]) for w in range(word[-1] + 1)]
    assert all(len(values) == 1 for values in per_word)
    assert all(part.any() for part in np.split(masked, np.cumsum(sizes)[:-1]))


def test_four_fifths_become_mask_a_tenth_random_a_tenth_stays() -> None:
    ids, starts, lengths = texts(6000)
    keys = hashed(7, "key", np.arange(6000))
    masked = choose_words(starts, lengths, 0.3, keys, seed=7)
    changed = corrupt(ids, masked, lengths, keys, 7, WORDS)
    before, after = ids[masked], changed[masked]
    assert np.array_equal(ids[~masked], changed[~masked])
    assert (after == WORDS.mask).mean() == pytest.approx(0.8, abs=0.01)
    assert (after == before).mean() == pytest.approx(0.1, abs=0.01)
    others = after[(after != WORDS.mask) & (after != before)]
    assert not np.isin(others, WORDS.special).any()
    assert len(np.unique(others)) > 900  # from all over the vocabulary


def test_a_mask_depends_on_its_own_key_alone() -> None:
    _, starts, lengths = texts(50)
    keys = hashed(3, "key", np.arange(50))
    together = np.split(choose_words(starts, lengths, 0.3, keys, seed=3), np.cumsum(lengths)[:-1])
    alone = np.split(starts, np.cumsum(lengths)[:-1])
    for n in (0, 17, 49):
        assert np.array_equal(
            together[n], choose_words(alone[n], lengths[n : n + 1], 0.3, keys[n : n + 1], seed=3)
        )


def test_labels_are_the_original_tokens_also_in_cropped_texts(
    plan_of: Callable[..., Any], configure: Callable[..., Any], sources: Any
) -> None:
    """The released code cropped ids and mask by two draws, so that they disagreed."""
    from dataclasses import replace

    short = replace(sources, max_tokens=10)
    plan = plan_of(configure(method="mlm"), sources=short)
    store = sources.passages
    for step in range(plan.steps_per_epoch):
        for micro in plan(step).micro:
            text, width = micro.encoder, micro.encoder.ids.shape[1]
            assert text.mask.sum(1).max() <= 12
            labeled = text.ids.clone().view(-1)
            labeled[text.positions] = text.labels
            for row, mask in zip(labeled.view(-1, width), text.mask):
                tokens = row[mask][1:-1].numpy()
                runs = np.lib.stride_tricks.sliding_window_view(store.ids, len(tokens))
                assert (runs == tokens).all(1).any(), "not a stretch of the corpus"


def test_a_title_and_its_separator_leave_every_text_a_masked_token() -> None:
    """[CLS] title [SEP] text [SEP]: what stands between the two is no word to choose."""
    count = 300
    ids, starts = np.tile([7, WORDS.sep, 8], count), np.ones(3 * count, bool)
    texts = FlatTexts(ids, starts, np.full(count, 3), hashed(1, "key", np.arange(count)))
    masked = texts.masked("encoder", 0.15, 42, WORDS).chosen.reshape(count, 3)
    restored = texts.restored(0.15, 42, WORDS).masked
    assert restored is not None
    for chosen in (masked, restored.reshape(count, 3)):
        assert chosen.sum(1).tolist() == [1] * count and not chosen[:, 1].any()
