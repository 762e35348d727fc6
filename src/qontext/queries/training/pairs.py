"""Labeled (passage, query) pairs, or pairs of a question and what answers it, and their batches.

GAR (Mao et al. 2021) trains a model for each of three targets, and appends what it writes to a question for BM25:

    answers      the answers                                          of DPR's training files alone
    titles       the titles of the positive passages
    sentences    the first sentence of a positive passage with an answer, as DPR finds answers; in a set without answers, the
                 first one

Several answers or titles are joined by commas, in the order of the file.

Shapes: N pairs of a micro-batch, L passage tokens, Q query tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from qontext.corpus.sentences import by_rules, pieces
from qontext.data import collection, dpr
from qontext.evaluation.answers import token_matcher, tokens
from qontext.frame.errors import QontextError
from qontext.models.batching import Ints, pack_by_tokens
from qontext.training.batch import Batch, Rows
from qontext.training.randomness import U64, hashed
from qontext.training.sampler import EpochSampler
from qontext.training.texts import TokenizedTexts, tokenize

Target = Literal["answers", "titles", "sentences"]
Answered = tuple[str, tuple[str, ...], list[tuple[str, str]]]
"""A question, its answers, and titles and texts of its positive passages."""
_DEV_EVERY = 50


@dataclass(frozen=True)
class TrainingPair:
    """A passage and a query that it answers; or a question, and what answers it."""

    title: str
    text: str
    query: str


def read_pairs(folders: Sequence[str], split: str) -> list[TrainingPair]:
    """The positive judgments of a split of BEIR folders, in file order."""
    pairs: list[TrainingPair] = []
    for folder in folders:
        labeled = collection.load_collection(folder)
        qrels = labeled.qrels(split)
        queries = labeled.queries(split)
        relevant = {passage for judged in qrels.values() for passage, grade in judged.items() if grade > 0}
        passages = {p.id: p for p in labeled.passages() if p.id in relevant}
        collection.check_qrels(
            qrels, queries, passages.keys() | _unwanted(qrels, relevant), Path(folder) / "qrels"
        )
        pairs += [
            TrainingPair(passages[id].title, passages[id].text, queries[query])
            for query, judged in qrels.items()
            for id, grade in judged.items()
            if grade > 0 and passages[id].text.strip()
        ]
    if not pairs:
        raise QontextError(f"the split {split!r} has no positive judgment", place=", ".join(folders))
    return pairs


def read_questions(
    sources: Sequence[str], splits: tuple[str, str], target: Target
) -> tuple[list[TrainingPair], list[TrainingPair]]:
    """A pair of each question and its target, for training and for dev: of these splits of BEIR folders, or of DPR's
    training files, of which every 50th question is for dev."""
    found: tuple[list[TrainingPair], list[TrainingPair]] = [], []
    for source in sources:
        for is_dev, (question, answers, passages) in _answered(Path(source), splits):
            if question.strip() and (text := _target(target, answers, passages)):
                found[is_dev].append(TrainingPair("", question, text))
    for split, pairs in zip(splits, found):
        if not pairs:
            raise QontextError(
                f"has no question with {target} for {split!r}",
                place=", ".join(sources),
                remedy="Answers are in DPR's training files alone, of which every 50th question is for dev.",
            )
    return found


def _answered(source: Path, splits: tuple[str, str]) -> Iterator[tuple[bool, Answered]]:
    """The questions, each with True if it is for dev."""
    if dpr.is_training_file(source):
        for number, row in enumerate(dpr.positives(source)):
            yield number % _DEV_EVERY == _DEV_EVERY - 1, row
        return
    labeled = collection.load_collection(source)
    queries = labeled.queries()
    qrels = [labeled.qrels(split) for split in splits]
    positive = [{q: [id for id, grade in of.items() if grade > 0] for q, of in one.items()} for one in qrels]
    wanted = {id for one in positive for ids in one.values() for id in ids}
    passages = {p.id: (p.title, p.text) for p in labeled.passages() if p.id in wanted}
    for is_dev, (judged, relevant) in enumerate(zip(qrels, positive)):
        known = passages.keys() | _unwanted(judged, wanted)
        collection.check_qrels(judged, queries, known, source / "qrels")
        for query, ids in relevant.items():
            if ids:
                yield bool(is_dev), (queries[query], (), [passages[id] for id in ids])


def _target(target: Target, answers: Sequence[str], passages: Sequence[tuple[str, str]]) -> str:
    """The text that a model learns to write for a question; empty if there is none."""
    if target == "answers":
        return _joined(answers)
    if target == "titles":
        return _joined(title for title, _ in passages)
    has_answer = token_matcher(answers)
    return next((one for one in _sentences(passages) if not answers or has_answer(tokens(one))), "")


def _sentences(passages: Sequence[tuple[str, str]]) -> Iterator[str]:
    for _, text in passages:
        for piece in pieces(text, by_rules(text, "en")):
            if sentence := " ".join(piece.split()):
                yield sentence


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(" ".join(text.split()) for text in texts if text.strip()))


def _unwanted(qrels: collection.Qrels, relevant: set[str]) -> set[str]:
    """Passages that are judged but not relevant to any query: they may be missing."""
    return {passage for judged in qrels.values() for passage in judged} - relevant


@dataclass(frozen=True)
class PairRows(Rows):
    """Padded passages [N, L] and queries [N, Q], labels -100 at padding; `weight` is the weight of a prediction."""

    ids: Tensor
    mask: Tensor
    labels: Tensor
    weight: Tensor

    def scaled(self, shares: Tensor) -> PairRows:
        return replace(self, weight=self.weight * shares[0])


@dataclass(frozen=True)
class PairPlan:
    """The batch of step t, as a pure function of (seed, t): each pair once an epoch."""

    passages: TokenizedTexts
    queries: TokenizedTexts
    sampler: EpochSampler
    micro_tokens: int
    pad_id: int

    def __call__(self, step: int) -> Batch:
        pairs, _, first = self.sampler(step)
        row_keys = hashed(self.sampler.seed, "dropout", step, first + np.arange(len(pairs)))
        predictions = self.predictions(pairs)
        micro = list(self.rows(pairs, row_keys, 1 / predictions))
        return Batch(micro, self.sampler.batch_size, predictions=(float(predictions),))

    def predictions(self, pairs: Ints) -> int:
        """The number of predictions over which the loss of these pairs is averaged."""
        return int(self.queries.length[pairs].sum())

    def rows(self, pairs: Ints, row_keys: U64, weight: float) -> Iterator[PairRows]:
        """The pairs in micro-batches of similar lengths."""
        for cut in pack_by_tokens(self.passages.length[pairs], self.queries.length[pairs], self.micro_tokens):
            ids, mask = self.passages.pad(pairs[cut], self.pad_id)
            labels, _ = self.queries.pad(pairs[cut], -100)
            yield PairRows(ids, mask.long(), labels, torch.tensor(weight), row_keys=row_keys[cut])

    def all(self) -> Iterator[PairRows]:
        """All pairs, each prediction with the same weight."""
        pairs = np.arange(len(self.passages.length))
        yield from self.rows(pairs, np.zeros(len(pairs), np.uint64), 1 / self.predictions(pairs))


def tokenize_pairs(
    tokenizer: Any,
    pairs: list[TrainingPair],
    source: Callable[[TrainingPair], str],
    max_passage: int,
    max_query: int,
) -> tuple[TokenizedTexts, TokenizedTexts]:
    """Tokenize passages and queries; `source` formats the encoder input of a pair."""
    passages = tokenize(enumerate(map(source, pairs)), len(pairs), tokenizer, max_passage)
    queries = tokenize(enumerate(pair.query for pair in pairs), len(pairs), tokenizer, max_query)
    # A decoder has its own start token: the one that the tokenizer puts first is not predicted.
    start = tokenizer.cls_token_id
    if start is None:
        return passages, queries
    doubled = (queries.ids[queries.begin] == start).astype(np.int64)
    return passages, replace(queries, begin=queries.begin + doubled, length=queries.length - doubled)
