"""GAR (Mao et al. 2021): a model for each of three targets, whose output is appended to a question for BM25.

    answers      the answers                                          of DPR's training files alone
    titles       the titles of the positive passages
    sentences    the first sentence of a positive passage with an answer, as DPR finds answers; in a set without answers, the
                 first one

Several answers or titles are joined by commas, in the order of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from qontext.corpus.sentences import by_rules, pieces
from qontext.data import collection, dpr
from qontext.evaluation.answers import token_matcher, tokens
from qontext.frame.errors import QontextError
from qontext.queries.train_generator import QueryTask
from qontext.queries.training import TrainingPair, unwanted

Answered = tuple[str, tuple[str, ...], list[tuple[str, str]]]
"""A question, its answers, and titles and texts of its positive passages."""
_DEV_EVERY = 50


class AnswerQuestions(QueryTask):
    """The tasks `answers`, `titles` and `sentences` of `train-generator`."""

    @staticmethod
    def pairs(
        sources: Sequence[str], splits: tuple[str, str], learns: str
    ) -> tuple[list[TrainingPair], list[TrainingPair]]:
        return read_questions(sources, splits, learns)


def read_questions(
    sources: Sequence[str], splits: tuple[str, str], target: str
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
        known = passages.keys() | unwanted(judged, wanted)
        collection.check_qrels(judged, queries, known, source / "qrels")
        for query, ids in relevant.items():
            if ids:
                yield bool(is_dev), (queries[query], (), [passages[id] for id in ids])


def _target(target: str, answers: Sequence[str], passages: Sequence[tuple[str, str]]) -> str:
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
