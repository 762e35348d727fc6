"""Text → the starts of its sentences, their numbers of tokens, and spans of at most a number of tokens.

No text is lost: sentence i is text[start[i] : start[i + 1]]. Every splitter has one signature,
``(text, language) -> starts``, and `starts` begins with 0. White space between two sentences belongs to the first of them.

    span k = the longest run of next sentences with  Σ tokens + 2 ≤ target_k
    target_k = max_tokens, or with probability p drawn uniformly from [2, max_tokens]

Tokens are counted with an encoder's tokenizer or with the rule `words`: a word of up to 8 letters is one token, a longer one
one per 5 letters, a punctuation mark one. On English Wikipedia it is within about 1 % of BERT's WordPiece, in 40 % of the
time.

The 2 are the special tokens. A single sentence that is longer than the target is a separate span; if it is
longer than `max_tokens`, it is *overlong*: it is not cut here, but cropped when it is read.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from qontext.frame.errors import QontextError, missing_extra
from qontext.models import hub

Splitter = Callable[[str, str], list[int]]
Counter = Callable[[list[str]], list[int]]
WORDS, SPECIAL_TOKENS = "words", 2

_LINE = re.compile(r"\n\s*")
_PAUSE = re.compile(r"[.!?;:,]\s+")
_SPACE = re.compile(r"\s+")
PIECE = re.compile(r"\w+|[^\w\s]")
_WIDE_SPACES = {code: " " for code in range(128, 0x3001) if chr(code).isspace()}


def pieces(text: str, starts: list[int]) -> list[str]:
    """The sentences, each with the white space before it, so that their tokens are those of the whole text.
    (Tokenizers other than WordPiece join a word with the space before it.)
    """
    cuts = [0, *(_before_space(text, start) for start in starts[1:]), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(cuts)]


def by_rules(text: str, language: str) -> list[int]:
    """`sentencex`: rules and abbreviation lists for many languages, fast. The default."""
    import sentencex

    if not text.isascii():
        # Version 1.0.32 panics at a no-break space after an abbreviation. Positions do not change.
        text = text.translate(_WIDE_SPACES)
    lead = position = len(text) - len(text.lstrip())
    starts = [0]
    for sentence in sentencex.segment(language, text):
        words = sentence.strip()
        # The library may drop a blank line between paragraphs, so each sentence is looked up in the text.
        at = text.find(words, position) if words else -1
        if at >= 0:
            if at > lead:
                starts.append(at)
            position = at + len(words)
    return starts


def by_punkt(text: str, language: str) -> list[int]:
    """NLTK's punkt, if NLTK and its data are installed. Nothing is downloaded."""
    starts = [start for start, _ in _punkt(language).span_tokenize(text)]
    return [0, *starts[1:]]


def by_lines(text: str, language: str) -> list[int]:
    """One sentence per line, for text that is already split."""
    lead = len(text) - len(text.lstrip())
    return [0, *(m.end() for m in _LINE.finditer(text) if lead < m.start() and m.end() < len(text))]


def by_code(text: str, most: int) -> list[int]:
    """Code, at empty lines. Stretches of more than `most` tokens are cut where fewest brackets are open, at the end of a
    sentence or statement, at the least indentation.
    """
    lines = text.splitlines(keepends=True)
    starts = list(itertools.accumulate(map(len, lines), initial=0))
    tokens = [sum(token_count(piece) for piece in PIECE.findall(line)) for line in lines]
    cuts, first, lead = [0], 0, len(text) - len(text.lstrip())
    is_blank = [not line.strip() for line in lines]
    for number in range(1, len(lines) + 1):
        if number < len(lines) and not (is_blank[number - 1] and not is_blank[number]):
            continue
        while (stop := _fitting(tokens, first, number, most)) < number:
            first = min(range(first + (stop - first + 1) // 2, stop + 1), key=_break(lines, first))
            cuts.append(starts[first])
        first = number
        if number < len(lines) and starts[number] > lead:
            cuts.append(starts[number])
    return cuts


def _fitting(tokens: list[int], first: int, end: int, most: int) -> int:
    """The line after the last of lines[first:end] that fits, but at least one."""
    total = 0
    for number in range(first, end):
        total += tokens[number]
        if total > most:
            return max(number, first + 1)
    return end


def _break(lines: list[str], first: int) -> Callable[[int], tuple[int, bool, int, int]]:
    """The cost of beginning a passage with a line, for `min`; of equal ones, the last is best."""

    def badness(number: int) -> tuple[int, bool, int, int]:
        before = "".join(lines[first:number])
        depth = sum(before.count(mark) for mark in "([{") - sum(before.count(mark) for mark in ")]}")
        is_end = before.rstrip().endswith((".", ":", ";", "}", ")", '"""'))
        indent = len(lines[number]) - len(lines[number].lstrip())
        return max(depth, 0), not is_end, indent, -number

    return badness


def shortened(text: str, starts: list[int], most: int) -> list[int]:
    """Split sentences of more than `most` tokens (counted by the rule `words`), such as tables and lists
    without sentence ends: at a line end if there is one, else after a punctuation mark, else at a space.
    """
    cuts = []
    for begin, end in itertools.pairwise([*starts, len(text)]):
        cuts.append(begin)
        while end - begin > most:  # no token is shorter than a character
            reached = _reach(text, begin, end, most)
            if reached is None:
                break
            stretch = text[begin:reached]
            marks = [*_LINE.finditer(stretch)] or [*_PAUSE.finditer(stretch)] or [*_SPACE.finditer(stretch)]
            begin = begin + marks[-1].end() if marks and marks[-1].end() < len(stretch) else reached
            cuts.append(begin)
    return cuts


def _reach(text: str, begin: int, end: int, most: int) -> int | None:
    """The position of the first token beyond the limit, or within a word that alone exceeds it; None if text[begin:end]
    fits."""
    count = 0
    # Of longer words, no more has to be read.
    for piece in re.compile(rf"\w{{1,{5 * most + 8}}}|[^\w\s]").finditer(text, begin, end):
        if token_count(piece[0]) > most and not count:
            return piece.start() + most
        count += token_count(piece[0])
        if count > most:
            return piece.start()
    return None


SPLITTERS: dict[str, Splitter] = {"sentencex": by_rules, "punkt": by_punkt, "newline": by_lines}


@functools.lru_cache
def _punkt(language: str) -> Any:
    try:
        from nltk.tokenize.punkt import PunktTokenizer
    except ImportError:
        raise missing_extra("nltk", "nltk", "Splitting with punkt") from None
    names = {"en": "english", "de": "german", "fr": "french", "es": "spanish", "it": "italian"}
    return PunktTokenizer(names.get(language, language))


def _before_space(text: str, start: int) -> int:
    """The start of the white space before a sentence."""
    while start > 0 and text[start - 1].isspace():
        start -= 1
    return start


class SentenceSpan(NamedTuple):
    """Sentences first … last - 1, and their tokens with the special ones."""

    first: int
    last: int
    tokens: int


def group(
    sentence_tokens: list[int], max_tokens: int, short_probability: float = 0.0, key: str = ""
) -> list[SentenceSpan]:
    """Group sentences greedily, cutting before the one that would overflow; short targets are drawn from `key` (seed and
    document).
    """
    dice = random.Random(key) if short_probability else None
    spans: list[SentenceSpan] = []
    first, tokens = 0, SPECIAL_TOKENS
    target = _target(max_tokens, short_probability, dice)
    for i, count in enumerate(sentence_tokens):
        if i > first and tokens + count > target:
            spans.append(SentenceSpan(first, i, tokens))
            first, tokens = i, SPECIAL_TOKENS
            target = _target(max_tokens, short_probability, dice)
        tokens += count
    if sentence_tokens:
        spans.append(SentenceSpan(first, len(sentence_tokens), tokens))
    return spans


def _target(max_tokens: int, short_probability: float, dice: random.Random | None) -> int:
    if dice is not None and dice.random() < short_probability:
        return dice.randint(2, max_tokens)
    return max_tokens


def token_count(piece: str) -> int:
    """Approximate number of tokens of a word or a punctuation mark."""
    return 1 if len(piece) <= 8 else (len(piece) + 3) // 5


def count_words(sentences: list[str]) -> list[int]:
    """Apply the rule `words` to each sentence."""
    return [sum(map(token_count, PIECE.findall(sentence))) for sentence in sentences]


def counter(tokenizer: str) -> Counter:
    """The counting function of a tokenizer (a folder, a file, a Hub name) or of the rule `words`."""
    if tokenizer == WORDS:
        return count_words
    loaded = load_tokenizer(tokenizer)
    return lambda sentences: [len(e) for e in loaded.encode_batch_fast(sentences, add_special_tokens=False)]


def load_tokenizer(name: str) -> Any:
    """A `tokenizers.Tokenizer` without truncation or padding, from a folder, a tokenizer.json or the Hub."""
    path = Path(name).expanduser()
    file = path if path.is_file() else hub.locate(name, "tokenizer") / "tokenizer.json"
    return _load(file, file.stat().st_mtime_ns if file.is_file() else None)


@functools.lru_cache(maxsize=4)
def _load(file: Path, version: int | None) -> Any:
    """The tokenizer in this version of the file; None: there is no file, only a vocabulary beside it."""
    # There is one process per core already: threads inside each would compete for the cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        if version is not None:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(file))
        else:
            from transformers import AutoTokenizer

            slow = AutoTokenizer.from_pretrained(file.parent, local_files_only=True, trust_remote_code=False)
            tokenizer = slow.backend_tokenizer
    except Exception as error:  # tokenizers raises nothing more specific
        raise QontextError(f"not a tokenizer: {error}", place=file) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # "[MASK]" or "<pad>" in a text are words, not special tokens.
    tokenizer.encode_special_tokens = True
    return tokenizer
