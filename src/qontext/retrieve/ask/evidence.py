"""The best sentence of a hit for a question, the text around it, and the evidence: why the hit was found.

A sentence's score is the sum of the inverse document frequencies of the question's words that are in it. They come from
BM25's index, or else from the sentences of the passage itself. Evidence is the rank in each part of the system:

words     with the words of the question that the passage has, each with its part of the score of BM25
meaning   with the sentence of the passage whose vector is nearest to that of the question
tokens    after the comparison token by token
reranker  after the cross-encoder
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from qontext.frame.errors import QontextError
from qontext.retrieve.analyzer import lower_words_of, term_of
from qontext.retrieve.query_encoder import WITHOUT_TORCH
from qontext.retrieve.system import (
    CANDIDATES,
    Among,
    Fused,
    IndexRanker,
    Ranker,
    Reranked,
    everything,
)

if TYPE_CHECKING:
    from qontext.data.places import Found
    from qontext.retrieve.bm25 import Bm25

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


class FoundBy(NamedTuple):
    """A part of the system, with the hit's rank and score in it; None if it is not among its best."""

    part: str
    rank: int | None
    score: float | None


@dataclass(frozen=True)
class Evidence:
    """The parts of the system, the words and the sentence that found a hit."""

    parts: tuple[FoundBy, ...]
    words: Mapping[str, float] = field(default_factory=dict)
    """The words of the question that the passage has → their part of the score of BM25."""
    sentence: str = ""
    """The sentence of the passage whose vector is nearest to that of the question."""
    similarity: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The evidence as JSON."""
        own: dict[str, Any] = {"parts": [part._asdict() for part in self.parts]}
        if self.words:
            own["words"] = [{"word": word, "weight": weight} for word, weight in self.words.items()]
        if self.sentence:
            own |= {"sentence": self.sentence, "similarity": self.similarity}
        return own

    def lines(self) -> list[str]:
        """The evidence for people, a line for each part that says more than its rank."""
        ranks = ", ".join(f"{part.part} {'–' if part.rank is None else part.rank}" for part in self.parts)
        shown = [f"ranks: {ranks}"]
        if self.words:
            shown.append("words: " + ", ".join(f"{word} {weight:.2f}" for word, weight in self.words.items()))
        if self.sentence:
            shown.append(f"nearest sentence ({self.similarity:.2f}): {self.sentence}")
        return shown


def parts_of(ranker: Ranker) -> dict[str, Ranker]:
    """The parts of a ranker by name, those that find first; the whole is the last."""
    if isinstance(ranker, Reranked):
        return {**parts_of(ranker.first), ranker.scorer.name: ranker}
    if isinstance(ranker, Fused):
        inner = {name: part for one in ranker.rankers for name, part in parts_of(one).items()}
        return {**inner, "both": ranker}
    return {"words" if getattr(ranker, "encoder", None) is None else "meaning": ranker}


def evidence(
    question: str, hits: Sequence[Found], ranker: Ranker, *, among: Among = everything
) -> list[Evidence]:
    """The evidence for each hit."""
    parts = parts_of(ranker)
    runs = {name: part.rank({"q": question}, CANDIDATES, among=among) for name, part in parts.items()}
    ranks = {
        name: {hit.passage: (rank, round(hit.score, 6)) for rank, hit in enumerate(run.get("q", ()), start=1)}
        for name, run in runs.items()
    }
    words, meaning = parts.get("words"), parts.get("meaning")
    bm25 = getattr(words.index, "bm25", None) if isinstance(words, IndexRanker) else None
    encoder: Any = meaning.encoder if isinstance(meaning, IndexRanker) else None
    query = None if encoder is None else encoder.encode([question], "query")
    shown = []
    for hit in hits:
        id = hit.passage.id
        by = tuple(FoundBy(name, *ranks[name].get(id, (None, None))) for name in parts)
        own = {} if bm25 is None else matched_words(bm25, question, id)
        shown.append(Evidence(by, own, *_nearest(query, hit.passage.text, hit.sentences, encoder)))
    return shown


def _nearest(query: Any, text: str, starts: Sequence[int], encoder: Any) -> tuple[str, float | None]:
    """The sentence whose vector is nearest to that of the question, and their cosine."""
    import numpy as np

    if not isinstance(query, np.ndarray) or query.ndim != 2:
        return "", None  # no vector, or a representation of several
    sentences = [text[begin:end] for begin, end in sentences_of(text, starts)]
    blocks = [sentences[first : first + WITHOUT_TORCH] for first in range(0, len(sentences), WITHOUT_TORCH)]
    vectors = np.concatenate([np.asarray(encoder.encode(block, "passage"), np.float32) for block in blocks])
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query[0])
    cosines = vectors @ query[0] / np.maximum(lengths, 1e-12)
    best = int(cosines.argmax())
    return " ".join(sentences[best].split()), round(float(cosines[best]), 4)


def matched_words(bm25: Bm25, question: str, id: str) -> dict[str, float]:
    """The words of the question that the passage has, the heaviest first, with their parts of its score."""
    weights: dict[str, float] = {}
    term, row = term_of(bm25.analyzer), bm25.number(id)
    seen: set[str] = set()
    for word in lower_words_of(bm25.analyzer)(question):
        if (stem := term(word)) and stem not in seen:
            seen.add(stem)
            if weight := bm25.weight(stem, row):
                weights[word] = round(weight, 4)
    return dict(sorted(weights.items(), key=lambda item: -item[1]))
