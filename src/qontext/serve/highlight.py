"""Highlighting the words of a query in a text, as segments that are marked or not."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from qontext.frame.errors import QontextError
from qontext.retrieve.analysis import term_of

_WORD = re.compile(r"\w+(?:['’]\w+)*")
SNIPPET = 900
"""Maximum characters of a passage in a result."""


class Stretch(NamedTuple):
    text: str
    is_marked: bool


def highlight(text: str, query: str, analyzer: str = "english") -> list[Stretch]:
    """The text in segments; words with the stem of a query word are marked."""
    term = _term_of(analyzer)
    stems = _stems(query, analyzer)
    stretches: list[Stretch] = []
    end = 0
    for match in _WORD.finditer(text):
        if term(match[0].lower()) in stems:
            stretches += [Stretch(text[end : match.start()], False), Stretch(match[0], True)]
            end = match.end()
    stretches.append(Stretch(text[end:], False))
    return [stretch for stretch in stretches if stretch.text]


def _term_of(analyzer: str) -> Callable[[str], str]:
    try:
        return term_of(analyzer)
    except QontextError:
        return term_of("plain")


@lru_cache(maxsize=8)
def _stems(query: str, analyzer: str) -> frozenset[str]:
    """The stems of a query's words; a page has many texts and one query."""
    term = _term_of(analyzer)
    return frozenset(stem for word in _WORD.findall(query.lower()) if (stem := term(word)))
