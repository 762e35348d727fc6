"""Text → where its sentences start. Nothing is lost: sentence i is text[start[i] : start[i + 1]].

Every splitter has one signature, ``(text, language) -> starts``, and `starts` begins with 0. White space
between two sentences belongs to the first of them.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any

from qontext.errors import QontextError, missing_extra

Splitter = Callable[[str, str], list[int]]

_LINE = re.compile(r"\n\s*")
_WIDE_SPACES = {code: " " for code in range(128, 0x3001) if chr(code).isspace()}


def pieces(text: str, starts: list[int]) -> list[str]:
    """The sentences, each with the white space before it: so cut, tokens are those of the whole text.

    (Tokenizers other than WordPiece join a word with the space before it.)
    """
    cuts = [0, *(_before_space(text, start) for start in starts[1:]), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(cuts)]


def by_rules(text: str, language: str) -> list[int]:
    """`sentencex`: rules and abbreviation lists for many languages, fast. The default."""
    import sentencex

    if not text.isascii():
        # Version 1.0.32 panics at a no-break space after an abbreviation. Places stay the same.
        text = text.translate(_WIDE_SPACES)
    lead = position = len(text) - len(text.lstrip())
    starts = [0]
    for sentence in sentencex.segment(language, text):
        words = sentence.strip()
        # The library may drop a blank line between paragraphs, so each sentence is looked up in the text.
        found = text.find(words, position) if words else -1
        if found >= 0:
            if found > lead:
                starts.append(found)
            position = found + len(words)
    return starts


def by_punkt(text: str, language: str) -> list[int]:
    """NLTK's punkt, when NLTK and its data are on this machine. Nothing is downloaded."""
    starts = [start for start, _ in _punkt(language).span_tokenize(text)]
    return [0, *starts[1:]]


def by_lines(text: str, language: str) -> list[int]:
    """One sentence a line, for text that is already split."""
    return [0, *(m.end() for m in _LINE.finditer(text) if m.end() < len(text) and text[: m.start()].strip())]


SPLITTERS: dict[str, Splitter] = {"sentencex": by_rules, "punkt": by_punkt, "newline": by_lines}


@functools.lru_cache
def _punkt(language: str) -> Any:
    try:
        from nltk.data import find
        from nltk.tokenize.punkt import PunktTokenizer
    except ImportError:
        raise missing_extra("nltk", "nltk", "Splitting with punkt") from None
    name = {"en": "english", "de": "german", "fr": "french", "es": "spanish", "it": "italian"}.get(
        language, language
    )
    try:
        find(f"tokenizers/punkt_tab/{name}/")
    except LookupError:
        raise QontextError(
            f"NLTK's punkt data for {name!r} is not on this machine",
            remedy="Run: python -m nltk.downloader punkt_tab, or use --sentences sentencex.",
        ) from None
    return PunktTokenizer(name)


def _before_space(text: str, start: int) -> int:
    """Where the white space before a sentence begins."""
    while start > 0 and text[start - 1].isspace():
        start -= 1
    return start
