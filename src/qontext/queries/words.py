"""Words, sentences and corpus statistics of many texts at once: each distinct string is processed once per batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import regex  # type: ignore[import-untyped]  # a dependency of transformers

from qontext.data.collection import Passage

Array = np.ndarray[Any, Any]
T = TypeVar("T")

READ_CHARACTERS = 20_000
"""Maximum characters of a text that are read."""
PRUNE_ABOVE = 4_000_000
_ENGLISH_SHARE, _MANY_WORDS, _RARER_THAN_EVERY = 0.1, 1_000, 4

STOP_WORDS = frozenset(
    """a about above after again against all also although am among an and any anyone are around as at away
    be because been before being below between both but by came can can't cannot could couldn't did
    didn't do does doesn't doing don't done down during each either etc even ever every everyone for
    from further gave get gets give given go goes going got had has have having he her here hers herself
    him himself his how however i if in into is isn't it it's its itself just later least less let like
    made make makes many may me might mine more most much must my myself near never no nor not nothing
    now of off often on once one only onto or other others our ours out over own part per perhaps quite
    rather said same say says see seen shall she should since so some someone something still such take
    taken than that that's the their theirs them themselves then there these they this those though
    through thus till to together too took toward towards under until unto up upon us use used uses
    using usually very via was wasn't way we well went were weren't what when where whether which while
    who whom whose why will with within without won't would yet you your yours yourself""".split()
)
"""English function words, and a few verbs and adverbs that are rare in queries."""

_WORD = regex.compile(r"(?:[\p{L}\p{N}]\p{M}*)+(?:['’.&-](?:[\p{L}\p{N}]\p{M}*)+)*")
_BLANKS = r'["“”„«»()\[\]/–—]'
_CLAUSE = r"([。！？；，、：])"
"""Punctuation of scripts that put no space after it."""
_TRIM = ".,;:!?'’‘`…-*&%$#=+~·•¿¡。！？、，"
# Not sentence ends although they end in a period: initials, titles and the like.
_ABBREVIATION = (
    r"^(?:\p{Lu}|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Gen|Col|Lt|Rev|No|vs|etc|cf|ca|approx|(?:\p{L}\.)+\p{L})\.$"
)


def content_words(text: str) -> set[str]:
    """The lower-cased content words of a text."""
    return set(_WORD.findall(text.lower())) - STOP_WORDS


@dataclass(frozen=True, eq=False)
class TokenArrays:
    """Texts as flat arrays. T tokens (as written, between spaces), U distinct tokens, W distinct words."""

    starts: Array  # [texts + 1]: where each text's tokens start
    token: Array  # [T]: which of the U written tokens
    written: list[str]  # [U] tokens as written, with punctuation
    bare: list[str]  # [U] without surrounding punctuation
    word: Array  # [U]: which word the token is, lower-cased and bare
    words: list[str]  # [W]
    capital: Array  # [U] starts with a capital
    ends: Array  # [T] the last token of a sentence

    @classmethod
    def of(cls, texts: Sequence[str]) -> TokenArrays:
        """Quotes, brackets and dashes become spaces, and parenthesized text is removed."""
        starts, token, written = split(texts)
        bare = pc.utf8_trim(written, _TRIM)
        words = pc.dictionary_encode(pc.utf8_lower(bare))
        ending = _flags(pc.match_substring_regex(written, r"[.!?。！？]['’]?$"))
        pointed = np.flatnonzero(_flags(pc.ends_with(written, ".")))
        ending[pointed] = ~_flags(pc.match_substring_regex(written.take(pa.array(pointed)), _ABBREVIATION))
        lower = _flags(pc.match_substring_regex(written, r"^\p{Ll}"))
        ends = ending[token]
        if len(token):
            ends[:-1] &= ~lower[token[1:]]
            ends[starts[1:][np.diff(starts) > 0] - 1] = True
        return cls(
            starts=starts,
            token=token,
            written=written.to_pylist(),
            bare=bare.to_pylist(),
            word=words.indices.to_numpy(zero_copy_only=False),
            words=words.dictionary.to_pylist(),
            capital=_flags(pc.match_substring_regex(written, r"^\p{Lu}")),
            ends=ends,
        )


def split(texts: Sequence[str]) -> tuple[Array, Array, Any]:
    """The start of each text's tokens, the number of each token's type, and the types as written."""
    column = pa.array([text[:READ_CHARACTERS] for text in texts], pa.large_string())
    column = pc.replace_substring_regex(column, r"\([^()]*\)", " ")
    column = pc.replace_substring_regex(pc.replace_substring(column, "\n", " . "), _BLANKS, " ")
    column = pc.replace_substring_regex(column, _CLAUSE, r"\1 ")
    parts = pc.utf8_split_whitespace(column)
    coded = pc.dictionary_encode(parts.flatten())
    starts = parts.offsets.to_numpy() - parts.offsets[0].as_py()
    return starts, coded.indices.to_numpy(zero_copy_only=False), coded.dictionary


class Rarity:
    """The rarity of words in a corpus: log(N / document frequency), from one pass over the passages. Words
    with one occurrence are dropped when the table exceeds four million entries, so memory is bounded; a
    dropped word counts as occurring once.
    """

    are_english: bool
    """False for many words among which the most common one of English is rare."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        word_counts: Counter[str] = Counter()
        self.passages = 0
        for batch in batches(passages, 4096):
            self.passages += len(batch)
            starts, token, written = split([f"{p.title}\n{p.text}" for p in batch])
            coded = pc.dictionary_encode(pc.utf8_lower(pc.utf8_trim(written, _TRIM)))
            word, V = coded.indices.to_numpy(zero_copy_only=False), len(coded.dictionary)
            pairs = np.sort(np.repeat(np.arange(len(batch)), np.diff(starts)) * V + word[token])
            pairs = pairs[np.diff(pairs, prepend=-1) > 0]
            counts = np.bincount(pairs % V, minlength=V) if V else np.zeros(0, int)
            for word, count in zip(coded.dictionary.to_pylist(), counts.tolist()):
                word_counts[word] += count
            if len(word_counts) > PRUNE_ABOVE:
                word_counts = Counter({word: n for word, n in word_counts.items() if n > 1})
        counted = np.fromiter(word_counts.values(), dtype=np.float64, count=len(word_counts))
        self.unseen = float(np.log(max(self.passages, 2)))
        self._of = dict(zip(word_counts, (self.unseen - np.log(counted)).tolist()))
        is_rare = word_counts["the"] < _ENGLISH_SHARE * self.passages
        self.are_english = len(word_counts) < _MANY_WORDS or not is_rare

    def of(self, words: Sequence[str]) -> Array:
        """Between 0 (in every passage) and 1 (in one passage only), for each word."""
        get, unseen = self._of.get, self.unseen
        return np.array([get(word, unseen) for word in words]) / unseen

    def stop(self, words: Sequence[str]) -> Array:
        """[N] True for words that say little: the function words of English, or of texts in another language the words of
        every fourth passage."""
        if self.are_english:
            return np.array([not word or word in STOP_WORDS for word in words])
        is_common = self.of(words) * self.unseen < np.log(_RARER_THAN_EVERY)
        says_little: Array = is_common | np.array([not word for word in words])
        return says_little


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one shorter."""
    stream = iter(items)
    while batch := list(islice(stream, size)):
        yield batch


def _flags(column: Any) -> Array:
    flags: Array = column.to_numpy(zero_copy_only=False)
    return flags.astype(bool)
