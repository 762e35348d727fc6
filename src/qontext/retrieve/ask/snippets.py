"""The sentence of a passage that best answers a question, and the text around it.

A sentence's score is the sum of the inverse document frequencies of the question's words that are in it. They come from
BM25's index, or else from the sentences of the passage itself.
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
_END = re.compile(r"[.!?…][\"'”’)\]]*\s+|\n\s*\n\s*")
_CODE = re.compile(r"^[ \t]{2,}\S|[;{}:)]\s*$|\w\s*=\s*\S|^(>>>|[@$#]|import|from|return)")

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
    """The best sentence of a passage for the question, and whole sentences around it, as far as they fit in `most`
    characters. `sentences` are the starts of the passage's sentences, if known."""
    units = sentences_of(text, sentences, most)
    best = _best(question, [text[begin:end] for begin, end in units], analyzer, rarity)
    first = last = best or 0
    while last + 1 < len(units) and units[last + 1][1] - units[first][0] <= most:
        last += 1
    while first and units[last][1] - units[first - 1][0] <= most:
        first -= 1
    shown = _joined(text, units[first : last + 1])
    shown = f"{MORE}{shown}" if first else shown
    shown = f"{shown}{MORE}" if last + 1 < len(units) else shown
    return Snippet(shown, *((0, len(text), True) if best is None else units[best]))


def unwrapped(text: str) -> str:
    """The whole text as snippets show it: code keeps its lines, those of a paragraph are joined."""
    return _joined(text, sentences_of(text, (), len(text)))


def sentences_of(text: str, sentences: Sequence[int] = (), most: int = SNIPPET) -> list[tuple[int, int]]:
    """The sentences of a text as (begin, end), without white space at their ends. `sentences` are their starts, if known;
    longer ones than `most` are cut between words."""
    starts = [*sentences] or [0, *(match.end() for match in _END.finditer(text) if match.end() < len(text))]
    units = []
    for begin, end in itertools.pairwise([*starts, len(text)]):
        while end - begin > most:
            space = max(text.rfind(sign, begin + 1, begin + most) for sign in " \n")
            cut = space if space > 0 else begin + most
            units.append((begin, cut))
            begin = cut
        units.append((begin, end))
    # The indentation of the first line stays.
    stripped = [(e - len(text[b:e].lstrip("\n")), b + len(text[b:e].rstrip())) for b, e in units]
    return [unit for unit in stripped if unit[1] > unit[0]] or [(0, len(text))]


def _best(question: str, units: list[str], analyzer: str, rarity: Rarity | None) -> int | None:
    """The number of the first sentence with the highest score; None if none has a word of the question."""
    try:
        term = term_of(analyzer)
    except QontextError:
        term = term_of("plain")
    split = lower_words_of(analyzer)
    wanted = {stem for word in split(question) if (stem := term(word))}
    found = [wanted & {term(word) for word in split(unit)} for unit in units] if wanted else []
    if not any(found):
        return None
    counts = Counter(stem for stems in found for stem in stems)

    def weight(stem: str) -> float:
        if rarity is not None:
            return rarity(stem)
        return math.log(1 + (len(units) - counts[stem] + 0.5) / (counts[stem] + 0.5))

    weights = {stem: weight(stem) for stem in counts}
    scores = [sum(weights[stem] for stem in sorted(stems)) for stems in found]
    return scores.index(max(scores))


def _joined(text: str, units: list[tuple[int, int]]) -> str:
    """Sentences one after the other. Code keeps its lines, and paragraphs, headings and items begin one."""
    shown: list[str] = []
    was_code, before = False, 0
    for begin, end in units:
        lines = [line.rstrip() for line in text[begin:end].split("\n") if line.strip()]
        is_code = sum(bool(_CODE.search(line)) for line in lines) * 2 > len(lines)
        gap = text[before:begin].count("\n")
        is_open = not shown or not shown[-1].rstrip("'\"”’)]").endswith(tuple(".!?…:;,"))
        if shown:
            shown.append("\n" if gap > 1 or (gap and (is_code or was_code or is_open)) else " ")
        shown.append("\n".join(lines) if is_code else " ".join(text[begin:end].split()))
        was_code, before = is_code, end
    return textwrap.dedent("".join(shown))
