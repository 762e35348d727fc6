"""Queries like those that people ask: of several candidates for a passage, those that resemble a sample of questions.

For each query, a real question is drawn, and the candidate that is nearest to it is taken:

    distance = |ln(words / words')| + 1 if only one of them is a question + the share of words that nobody asks with

A word is one that people ask with if it is in any of the questions; of each candidate, words of the passage's title do not
count. What is drawn is a hash of the passage, so that a passage's queries depend on nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from qontext.data.collection import Passage, read_queries
from qontext.training.randomness import key_of, uniform

CANDIDATES = 4
"""Candidates for each query."""
_WORD = re.compile(r"\w+")
_ASKS = re.compile(
    r"(who|whom|whose|what|which|when|where|why|how|is|are|was|were|do|does|did|can|could|should|would|will|has|have)\b",
    re.IGNORECASE,
)


class Style:
    """The length, form and words of a sample of questions."""

    def __init__(self, questions: Sequence[str], seed: int) -> None:
        self.seed = seed
        self.words = {word for question in questions for word in _words(question)}
        self.forms = [_form(question) for question in questions]

    @classmethod
    def of(cls, source: str, seed: int) -> Style:
        """The style of the questions in a file."""
        return cls(list(read_queries(source).values()), seed)

    def choose(self, passage: Passage, candidates: Sequence[str], count: int) -> list[str]:
        """The candidates that are nearest to `count` drawn questions, each at most once."""
        title = set(_words(passage.title))
        left = {}
        for text in candidates:
            words = [word for word in _words(text) if word not in title]
            unknown = sum(word not in self.words for word in words) / max(1, len(words))
            left[text] = (*_form(text), unknown)
        chosen = []
        for number in range(min(count, len(left))):
            draw = float(uniform(self.seed, "style", key_of(passage.id), number))
            length, is_question = self.forms[int(draw * len(self.forms))]

            def distance(text: str, length: int = length, is_question: bool = is_question) -> float:
                own, asks, unknown = left[text]
                return abs(math.log(own / length)) + (asks != is_question) + unknown

            best = min(left, key=distance)
            chosen.append(best)
            del left[best]
        return chosen


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _form(text: str) -> tuple[int, bool]:
    """The number of words, and whether it is a question rather than keywords."""
    return max(1, len(_words(text))), text.rstrip().endswith("?") or _ASKS.match(text.strip()) is not None
