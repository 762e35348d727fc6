"""The sentence of a passage that best answers a question, and the text around it.

A sentence's score is BM25's for the words of the question, with sentences as documents: rare words count more. How rare a
word is comes from the BM25 index, or else from the sentences of the passage itself.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from qontext.frame.errors import QontextError
from qontext.retrieve.analyzer import lower_words_of, term_of

SNIPPET = 320
"""Maximum characters of a snippet."""
MORE = "…"
"""The sign of text that is left out. It is attached to the word beside it, so that it is never alone on a line."""
_K1, _B = 0.9, 0.4
_END = re.compile(r"[.!?…][\"'”’)\]]*\s+|\n\s*\n\s*")
_CODE = re.compile(
    r"^[ \t]{2,}\S|[;{}]\s*$|^\s*(import|from|def|class|return|const|let|var|func|fn|public|#include)\b|\w\(.*\)\s*:?$"
    r"|\w\s*[:+-]?=\s*\S|^\s*[@$]\s?\w|^>>> ",
)
_CLOSED = re.compile(r"[.!?…:;,]['\"”’)\]]*\Z")

Rarity = Callable[[str], float]
"""Term → its inverse document frequency."""


class Snippet(NamedTuple):
    """A part of a passage around its best sentence, text[begin:end]; the whole passage if no word of the question is
    in it."""

    text: str
    begin: int
    end: int
    is_whole: bool = False


def snippet(
    question: str,
    text: str,
    sentences: Sequence[int] = (),
    *,
    analyzer: str = "english",
    rarity: Rarity | None = None,
    most: int = SNIPPET,
) -> Snippet:
    """The best sentence of a passage for the question, and about `most` characters around it: whole sentences if they fit,
    and else whole words. `sentences` are the starts of the passage's sentences, if known."""
    units = _units(text, sentences, most)
    best = _best(question, [text[begin:end] for begin, end in units], analyzer, rarity)
    first, last = (0, 0) if best is None else (best, best)
    while last + 1 < len(units) and units[last + 1][1] - units[first][0] <= most:
        last += 1
    while first and units[last][1] - units[first - 1][0] <= most:
        first -= 1
    pieces = units[first : last + 1]
    begin, end = pieces[0][0], pieces[-1][1]
    if last + 1 < len(units) and most - (end - begin) > most // 4:
        following = units[last + 1][0]
        end = _at_word(text, following, begin + most, end)
        pieces += [(following, end)] if end > following else []
    shown = _joined(text, pieces)
    shown = f"{MORE}{shown}" if text[:begin].strip() else shown
    shown = f"{shown}{MORE}" if text[end:].strip() else shown
    return Snippet(shown, *((0, len(text), True) if best is None else units[best]))


def sentences_of(text: str, sentences: Sequence[int] = (), most: int = SNIPPET) -> list[tuple[int, int]]:
    """The sentences of a text as (begin, end). `sentences` are their starts, if known; longer ones are cut."""
    return _units(text, sentences, most)


def unwrapped(text: str) -> str:
    """The whole text as snippets show it: code keeps its lines, those of a paragraph are joined."""
    return _joined(text, _units(text, (), len(text)))


def _units(text: str, sentences: Sequence[int], most: int) -> list[tuple[int, int]]:
    """The sentences as (begin, end), without white space at their ends; what is longer than `most` is cut at lines or
    words."""
    starts = [*sentences] or [0, *(match.end() for match in _END.finditer(text) if match.end() < len(text))]
    units = []
    for begin, end in itertools.pairwise([*starts, len(text)]):
        while end - begin > most:
            line = text.rfind("\n", begin + most // 4, begin + most)
            cut = line + 1 if line >= 0 else _at_word(text, begin, begin + most, begin + most)
            units.append((begin, cut))
            begin = cut
        units.append((begin, end))
    stripped = ((b + _indent(text[b:e]), b + len(text[b:e].rstrip())) for b, e in units)
    return [unit for unit in stripped if unit[1] > unit[0]] or [(0, len(text))]


def _indent(text: str) -> int:
    """The characters of empty lines at the beginning; the indentation of the first line stays."""
    blank = len(text) - len(text.lstrip())
    return text.rfind("\n", 0, blank) + 1


def _at_word(text: str, begin: int, limit: int, default: int) -> int:
    """The end of the last word that ends before the limit."""
    if limit >= len(text):
        return len(text)
    spaces = [match.start() for match in re.finditer(r"\s", text[begin : limit + 1]) if match.start()]
    return begin + spaces[-1] if spaces and begin + spaces[-1] > begin else default


def _best(question: str, units: list[str], analyzer: str, rarity: Rarity | None) -> int | None:
    """The number of the first sentence with the highest score; None if none has a word of the question."""
    try:
        term = term_of(analyzer)
    except QontextError:
        term = term_of("plain")
    split = lower_words_of(analyzer)
    wanted = {stem for word in split(question) if (stem := term(word))}
    if not wanted:
        return None
    counts, lengths = [], []
    for unit in units:
        words = split(unit)
        counts.append(Counter(stem for word in words if (stem := term(word)) in wanted))
        lengths.append(len(words))
    mean = sum(lengths) / len(units) or 1.0
    within = Counter(stem for count in counts for stem in count)

    def weight(stem: str) -> float:
        if rarity is not None:
            return rarity(stem)
        return math.log(1 + (len(units) - within[stem] + 0.5) / (within[stem] + 0.5))

    weights = {stem: weight(stem) for stem in within}

    def score(number: int) -> float:
        norm = _K1 * (1 - _B + _B * lengths[number] / mean)
        return sum(weights[stem] * n * (_K1 + 1) / (n + norm) for stem, n in counts[number].items())

    best = max(range(len(units)), key=lambda number: (score(number), -number))
    return best if counts[best] else None


def _joined(text: str, units: list[tuple[int, int]]) -> str:
    """Sentences one after the other. Code keeps its lines, and paragraphs, headings and items begin one."""
    shown: list[str] = []
    was_code, before = False, 0
    for begin, end in units:
        lines = [line.rstrip() for line in text[begin:end].split("\n") if line.strip()]
        is_code = sum(bool(_CODE.search(line)) for line in lines) * 2 > len(lines)
        gap = text[before:begin].count("\n")
        breaks = gap > 1 or (gap == 1 and (is_code or was_code or not (shown and _CLOSED.search(shown[-1]))))
        if shown:
            shown.append("\n" if breaks else " ")
        shown.append("\n".join(lines) if is_code else " ".join(text[begin:end].split()))
        was_code, before = is_code, end
    return textwrap.dedent("".join(shown))
