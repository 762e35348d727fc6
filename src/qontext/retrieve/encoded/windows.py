"""A passage as several vectors, one for each window of its text: the query is compared with the best of them.

    s(q, p) = max_{w in windows(p)} <e(q), e(title(p) + w)>

A window is a run of sentences of at most N tokens. The vector of a long text is an average of what its
sentences say; a question asks for one of these things. Nothing is trained for it, and a query has one vector as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qontext.corpus.sentences import (
    SPECIAL_TOKENS,
    Counter,
    by_rules,
    count_words,
    counter,
    group,
    pieces,
    shortened,
)
from qontext.data.passage import Passage
from qontext.frame.errors import QontextError
from qontext.models.folder import TextKind
from qontext.models.packed import Packed

if TYPE_CHECKING:
    from qontext.models.retriever import Retriever

LEAST = 1 / 3
"""The share of a window below which the last one is added to the window before it."""


def windows_of(text: str, most: int, count: Counter = count_words) -> list[str]:
    """The text in runs of sentences of at most `most` tokens with the special ones; the last run may be a third longer."""
    starts = shortened(text, by_rules(text, "en"), most - SPECIAL_TOKENS)
    sentences = pieces(text, starts)
    spans = group(count(sentences), most)
    bounds = [span.first for span in spans[1:]]
    if bounds and spans[-1].tokens < LEAST * most:
        bounds.pop()
    runs = zip([0, *bounds], [*bounds, len(sentences)], strict=True)
    windows = ["".join(sentences[first:last]).strip() for first, last in runs]
    return [window for window in windows if window] or [text]


class WindowEncoder:
    """A retriever of one vector that encodes passages by their windows of at most `size` tokens."""

    def __init__(self, retriever: Retriever, size: int) -> None:
        if size > retriever.max_length:
            raise QontextError(
                f"a window of {size:,} tokens is longer than the {retriever.max_length:,} that the encoder reads",
                place=retriever.layout.transformer,
                remedy=f"Set --window to {retriever.max_length} or less.",
            )
        self.retriever, self.size = retriever, size
        self.dimension = retriever.dimension
        self.count = counter(str(retriever.layout.transformer))

    def tokenize(self, passages: Sequence[Passage], kind: TextKind) -> list[list[Any]]:
        """The token ids of each passage's windows."""
        cut = [windows_of(passage.text, self.size, self.count) for passage in passages]
        texts = [
            passage._replace(text=window).joined(self.retriever.titles.between)
            for passage, windows in zip(passages, cut)
            for window in windows
        ]
        tokens = iter(self.retriever.tokenize(texts, kind))
        return [[next(tokens) for _ in windows] for windows in cut]

    def encode_tokens(
        self, tokens: Sequence[list[Any]], kind: TextKind, *, advance: Callable[[float], None] | None = None
    ) -> Packed:
        """The vectors of each passage's windows."""
        starts, windows, advanced = self._flat(tokens, advance)
        return Packed(starts, self.retriever.encode_tokens(windows, kind, advance=advanced))

    def encode_with_tokens(
        self,
        tokens: Sequence[list[Any]],
        form: Callable[[Any], Any],
        *,
        advance: Callable[[float], None] | None = None,
    ) -> tuple[Packed, Packed]:
        """The vectors of each passage's windows, and those of the tokens of all its windows."""
        starts, windows, advanced = self._flat(tokens, advance)
        vectors, words = self.retriever.encode_with_tokens(windows, form, advance=advanced)
        return Packed(starts, vectors), Packed(words.starts[starts], words.values)

    def _flat(self, tokens: Sequence[list[Any]], advance: Any) -> tuple[Any, list[Any], Any]:
        """The starts of the passages' windows, all windows, and `advance` by windows, of each of which a passage advances
        by its share."""
        starts = np.cumsum([0, *map(len, tokens)])
        share = len(tokens) / max(1, int(starts[-1]))
        windows = [window for own in tokens for window in own]
        return starts, windows, advance and (lambda count: advance(count * share))
