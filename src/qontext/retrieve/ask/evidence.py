"""The evidence for a hit: which parts of the system found it, at which rank, and what they saw in it.

words     the words of the question that the passage has, each with its part of the score of BM25
meaning   the sentence of the passage whose vector is nearest to that of the question
tokens    the rank after the comparison token by token
reranker  the rank after the cross-encoder
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from qontext.retrieve.analyzer import lower_words_of, term_of
from qontext.retrieve.ask.snippets import sentences_of
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
    from qontext.data.runs import Run
    from qontext.retrieve.bm25 import Bm25


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
    ranks = {name: _ranks(run) for name, run in runs.items()}
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


def _ranks(run: Run) -> dict[str, tuple[int, float]]:
    return {hit.passage: (rank, round(hit.score, 6)) for rank, hit in enumerate(run.get("q", ()), start=1)}


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
