"""Which words of a passage's queries are appended to it, for BM25 and for learned weights of words.

all     tf(t, d) + Σ_q tf(t, q)                 docT5query: the passage is found by new words, and its own are weighted
seen    tf(t, d) + Σ_q tf(t, q) · [t ∈ d]       its own words are weighted alone, as DeepCT does
new     tf(t, d) + Σ_q tf(t, q) · [t ∉ d]       it is found by new words alone; uniCOIL learns the weights of all

for the terms t of a passage d and its queries q. DeepCT (Dai and Callan 2019) estimates with a trained model the share of a
passage's queries that contain a term, and drops terms with none; here generated queries are counted, which are too few to
drop terms by.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from qontext.retrieve.analysis import WORD, term_of

Words = Literal["all", "seen", "new"]


class Appended:
    """Chooses what is appended. Words are compared as BM25 compares them, by an analyzer's terms."""

    def __init__(self, words: Words, analyzer: str) -> None:
        self.words, self._term = words, cache(term_of(analyzer))

    def __call__(self, passage: str, queries: list[str]) -> list[str]:
        """What is left of each query, if anything is."""
        if self.words == "all":
            return queries
        seen, wanted = self._terms(passage), self.words == "seen"
        kept = []
        for query in queries:
            terms = ((word, self._term(word.lower())) for word in WORD.findall(query))
            kept.append(" ".join(word for word, term in terms if term and (term in seen) == wanted))
        return [query for query in kept if query]

    def _terms(self, text: str) -> set[str]:
        return {self._term(word) for word in WORD.findall(text.lower())}
