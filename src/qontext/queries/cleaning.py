"""Cleaning the output of generators: blank, repeated and copied queries are dropped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from qontext.data.collection import Passage

_SIGNS = re.compile(r"[\W_]+")
_ASCII = bytes(ord(chr(n).lower()) if chr(n).isalnum() else 32 for n in range(128)) + bytes(range(128, 256))
"""ASCII characters in lower case, punctuation as spaces."""

ECHO_SHARE = 0.8
"""A query that repeats more than this share of the passage's characters is an echo."""


def clean(generated: Iterable[str], passage: Passage, tally: Counter[str]) -> list[str]:
    """The queries worth keeping, in order; what is dropped is counted in `tally` by reason.

    Two queries are equal if they differ only in case, punctuation and white space.
    """
    queries: dict[str, str] = {}
    body: str | None = None
    for raw in generated:
        query = " ".join(raw.split())
        plain = _plain(query)
        if not plain:
            tally["empty"] += 1
        elif plain in queries:
            tally["duplicates"] += 1
        else:
            if body is None and len(query) > ECHO_SHARE / 2 * len(passage.text):
                body = _plain(passage.text)
            if body and len(plain) > ECHO_SHARE * len(body) and (plain in body or body in plain):
                tally["echoes"] += 1
            else:
                queries[plain] = query
    return list(queries.values())


def _plain(text: str) -> str:
    """Keep only words. ASCII, by far the most frequent, has a fast path."""
    if text.isascii():
        return b" ".join(text.encode().translate(_ASCII).split()).decode()
    return _SIGNS.sub(" ", text.casefold()).strip()
