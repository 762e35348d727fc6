"""Words of a text in any script: a letter, digit or underscore, what follows of them, and the marks on them.

Marks are characters of their own in many scripts (the vowel signs of Hindi), and in decomposed Unicode in all of them (the
dots of ü). Scripts without spaces between words have pairs of neighboring characters instead.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_BLOCKS = (*range(0x300, 0x3100), *range(0xA600, 0xAC00), 0xFB1E, *range(0xFE20, 0xFE30))
"""The only ones below U+10000 with such marks, without the variation selectors of symbols."""
_MARKS = "".join(mark for mark in map(chr, _BLOCKS) if unicodedata.category(mark) in ("Mn", "Mc"))
_TOGETHER = "々-〇\u3040-ヿ㐀-䶿一-鿿豈-﫿가-힣฀-๿\U00020000-\U0003ffff"
"""Characters of scripts without spaces between words, and of Hangul, whose words are long."""
_OTHER = rf"(?![{_TOGETHER}])\w(?:(?![{_TOGETHER}])[\w{_MARKS}])*"
WORD = re.compile(rf"\w[\w{_MARKS}]*(?:['’]\w[\w{_MARKS}]*)*")
_APART = str.maketrans("'’", "  ")
_RUN = re.compile(rf"[{_TOGETHER}]")
_RUN_OR_WORD = re.compile(rf"(?P<run>[{_TOGETHER}]+)|{_OTHER}(?:['’]{_OTHER})*")


def pairs(text: str) -> list[str]:
    """The words of a text, and of a run of characters without spaces the pairs of neighbors, or its only one.

    >>> pairs("密码重置 in 2 steps")
    ['密码', '码重', '重置', 'in', '2', 'steps']
    """
    text = unicodedata.normalize("NFC", text)
    if not _RUN.search(text):
        return WORD.findall(text)
    return [text[begin:end] for begin, end in pair_spans(text)]


def apart(text: str) -> list[str]:
    """The same in lower case, and apart at apostrophes: whatever of words two texts may share."""
    return pairs(text.lower().translate(_APART))


def pair_spans(text: str) -> Iterator[tuple[int, int]]:
    """(begin, end) of each of them, in a text whose characters are composed."""
    for match in _RUN_OR_WORD.finditer(text):
        begin, end = match.span()
        is_pairs = match["run"] is not None and end - begin > 1
        yield from ((n, n + 2) for n in range(begin, end - 1)) if is_pairs else [(begin, end)]
