"""The evidence for a hit: which parts of the system found it, at which rank, and what they saw in it.

words     the words of the question that the passage has, each with its part of the score of BM25
meaning   the sentence of the passage whose vector is nearest to that of the question
tokens    the rank after the comparison token by token
reranker  the rank after the cross-encoder

The scores of different questions are not comparable. What is comparable is how many of the questions that `adapt` held out
have an answer with weaker evidence: the share that `strengths` returns, by

    e(q, p) = cos(q, p) + Σ_{t in q and p} idf(t) / Σ_{t in q} idf(t)

or by the term of them that the system has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qontext.frame import artifacts, log
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.retrieve.analyzer import lower_words_of, term_of
from qontext.retrieve.ask.questions import NoSuchPart
from qontext.retrieve.open import WITHOUT_TORCH
from qontext.retrieve.rankers import (
    CANDIDATES,
    Among,
    Fused,
    IndexRanker,
    PairReranked,
    Ranker,
    TokenReranked,
    everything,
)
from qontext.retrieve.snippets import sentences_of

if TYPE_CHECKING:
    from qontext.data.places import Found
    from qontext.data.runs import Run
    from qontext.retrieve.bm25 import Bm25
    from qontext.retrieve.open import AdaptedFolder

CALIBRATION = "calibration.json"
"""The file of a directory of `adapt` with the evidence for the answers of its held-out questions, in ascending order."""
JUDGED = "judged"
"""The deciding split of a verdict by people, who judge the answers to questions of another split."""
QUESTIONS, FEWEST = 500, 20
"""Held-out questions that are asked at most, and at least, to say how strong evidence is."""


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

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Evidence:
        """The inverse of `as_json`."""
        words = {row["word"]: row["weight"] for row in fields.get("words", ())}
        parts = tuple(FoundBy(**part) for part in fields["parts"])
        return cls(parts, words, fields.get("sentence", ""), fields.get("similarity"))

    def lines(self) -> list[str]:
        """The evidence for people, a line for each part that says more than its rank."""
        ranks = ", ".join(f"{part.part} {'–' if part.rank is None else part.rank}" for part in self.parts)
        shown = [f"ranks: {ranks}"]
        if self.words:
            shown.append("words: " + ", ".join(f"{word} {weight:.2f}" for word, weight in self.words.items()))
        if self.sentence:
            shown.append(f"nearest sentence ({self.similarity:.2f}): {self.sentence}")
        return shown


def parts_of(ranker: Ranker, name: str = "") -> dict[str, Ranker]:
    """The parts of a ranker by name, those that find first; the whole is the last."""
    if isinstance(ranker, TokenReranked):
        return {**parts_of(ranker.first), "tokens": ranker}
    if isinstance(ranker, PairReranked):
        return {**parts_of(ranker.first), "reranker": ranker}
    if isinstance(ranker, Fused):
        inner = {name: part for one in ranker.rankers for name, part in parts_of(one).items()}
        return {**inner, "both": ranker}
    if isinstance(ranker, IndexRanker):
        return {"words" if ranker.encoder is None else "meaning": ranker}
    return {name or "other": ranker}


def evidence(
    question: str,
    hits: Sequence[Found],
    ranker: Ranker,
    *,
    among: Among = everything,
) -> list[Evidence]:
    """The evidence for each hit."""
    if not hits:
        return []
    parts = parts_of(ranker)
    runs = {name: part.rank({"q": question}, CANDIDATES, among=among) for name, part in parts.items()}
    ranks = {name: _ranks(run) for name, run in runs.items()}
    words, meaning = parts.get("words"), parts.get("meaning")
    bm25 = getattr(words.index, "bm25", None) if isinstance(words, IndexRanker) else None
    encoder = meaning.encoder if isinstance(meaning, IndexRanker) else None
    query = None if encoder is None else encoder.encode([question], "query")
    shown = []
    for hit in hits:
        id = hit.passage.id
        nearest = _nearest(query, hit.passage.text, hit.sentences, encoder)
        by = tuple(FoundBy(name, *ranks[name].get(id, (None, None))) for name in parts)
        own = {} if bm25 is None else matched_words(bm25, question, id)
        shown.append(Evidence(by, own, *nearest))
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


def strengths(
    folder: AdaptedFolder, question: str, ids: Sequence[str], among: Among = everything
) -> list[float]:
    """For each passage, the share of the held-out questions whose answer has weaker evidence."""
    from bisect import bisect_left

    known = calibration(folder)
    if not ids:
        return []
    run = (
        folder.dense.rank({"q": question}, CANDIDATES, among=among)
        if folder.system.encoder is not None
        else None
    )
    weak = [_statistic(folder, question, id, run, "q") for id in ids]
    return [round(bisect_left(known, one) / len(known), 4) for one in weak]


def _statistic(folder: AdaptedFolder, question: str, id: str, run: Run | None, query: str) -> float:
    """e(q, p): the similarity of the vectors and the share of the question's words that the passage has."""
    total = 0.0
    if run is not None:
        scores = {hit.passage: hit.score for hit in run.get(query, ())}
        total += scores.get(id, min(scores.values(), default=0.0))
    if folder.system.words:
        bm25 = folder.lexical.bm25
        term, row = term_of(bm25.analyzer), bm25.number(id)
        stems = {stem for word in lower_words_of(bm25.analyzer)(question) if (stem := term(word))}
        everything_of_it = sum(map(bm25.rarity, stems))
        shared = sum(bm25.rarity(stem) for stem in stems if bm25.weight(stem, row))
        total += shared / everything_of_it if everything_of_it else 0.0
    return total


def calibration(folder: AdaptedFolder) -> list[float]:
    """The evidence for the answers of held-out questions, ascending; computed once for each index. Where these questions
    are removed, that of an earlier index stays: documents changed, the system did not."""
    file, key = folder.root / CALIBRATION, [folder.folder.name, folder.system.name, _split(folder)]
    recorded = read_json(file, dict[str, Any]) if file.is_file() else {}
    of = recorded.get("of", [])
    if of == key or (of[1:] == key[1:] and not _measured(folder).is_dir()):
        return [float(value) for value in recorded["evidence"]]
    values = sorted(_held_out(folder))
    if len(values) < FEWEST:
        raise NoSuchPart(
            "the strength of an answer is measured by questions that 'qontext adapt' held out, and it has too few",
            place=folder.root,
            remedy="Search a directory of 'qontext adapt' that has its steps.",
        )
    try:
        artifacts.Workdir(folder.root).write_json(
            CALIBRATION, {"of": key, "evidence": [round(v, 6) for v in values]}
        )
    except (OSError, QontextError) as error:  # a directory that may only be read: it is computed again
        log.detail(f"{file} is not written: {error}")
    return values


def _split(folder: AdaptedFolder) -> str:
    """The split whose questions were asked; of those that people judged, the one that they are from."""
    verdict = folder.about.get("verdict", {})
    split = str(verdict.get("split", "generated"))
    return str(verdict.get("people") or split) if split == JUDGED else split


def _measured(folder: AdaptedFolder) -> Path:
    """The held-out questions, with their passages."""
    return Path(folder.root) / "steps" / "holdout" / "measured"


def _held_out(folder: AdaptedFolder) -> list[float]:
    from qontext.data.collection import load_collection

    held_out, split = _measured(folder), _split(folder)
    if not held_out.is_dir():
        return []
    collection = load_collection(held_out)
    queries, qrels = collection.queries(split), collection.qrels(split)
    asked = {query: text for query, text in list(queries.items())[:QUESTIONS] if qrels.get(query)}
    run = folder.dense.rank(asked, CANDIDATES) if folder.system.encoder is not None and asked else None
    values = []
    for query, text in asked.items():
        answers = [
            id
            for id, grade in qrels[query].items()
            if grade > 0 and folder.lexical.bm25.number(id) is not None
        ]
        values += [max(_statistic(folder, text, id, run, query) for id in answers)] if answers else []
    return values
