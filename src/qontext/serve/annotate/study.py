"""The design of a study: pairs, annotators and order. Written once; a study of answers may get more questions.

Each drawn document has two pairs: a passage with another passage of the document, and the same passage with one of its
queries. One of them is judged by each group, so that nobody sees a document twice, and each group judges half of either
kind.

A study of answers has questions, each with the passages that may answer it (`adapt.judgments`), one after the other.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NotRequired

import numpy as np
from typing_extensions import TypedDict

from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.training.randomness import hashed

PairKind = Literal["passage-passage", "passage-query", "passage-question"]
KINDS: tuple[PairKind, ...] = ("passage-passage", "passage-query")
ANSWER: PairKind = "passage-question"
"""The kind of the pairs of a study of answers."""
RETIRED = 1
"""The group of pairs that nobody is asked any more: of questions and passages that are gone."""
FILE, GROUPS = "study.json", 2


@dataclass(frozen=True)
class StudyPair:
    """A passage and its context, with automatic signals."""

    number: int
    kind: PairKind
    group: int
    passage: str
    context: str
    signals: dict[str, bool]
    ids: tuple[str, str] = ("", "")
    """Of the question and the passage, in a study of answers."""


@dataclass(frozen=True)
class Annotator:
    """An annotator, identified by a key."""

    name: str
    group: int
    key: str


class _Pair(TypedDict):
    number: int
    kind: PairKind
    group: int
    passage: str
    context: str
    signals: dict[str, bool]
    ids: NotRequired[tuple[str, str]]


class _Annotator(TypedDict):
    name: str
    group: int
    key: str


class _Study(TypedDict):
    settings: dict[str, Any]
    organizer: str
    annotators: list[_Annotator]
    pairs: list[_Pair]


@dataclass(frozen=True)
class Study:
    """The design of a study."""

    settings: dict[str, Any]
    organizer: str
    """The key of the page with the results."""
    annotators: list[Annotator]
    pairs: list[StudyPair]

    @property
    def is_of_answers(self) -> bool:
        return "answers" in self.settings

    @property
    def kinds(self) -> tuple[PairKind, ...]:
        return (ANSWER,) if self.is_of_answers else KINDS

    def annotator(self, key: str) -> Annotator | None:
        """The annotator with this key, compared in constant time."""
        owner = None
        for annotator in self.annotators:
            if secrets.compare_digest(annotator.key.encode(), key.encode()):
                owner = annotator
        return owner

    def is_organizer(self, key: str) -> bool:
        return secrets.compare_digest(self.organizer.encode(), key.encode())

    def order(self, annotator: Annotator) -> list[StudyPair]:
        """The annotator's pairs, with mixed kinds, in an individual order."""
        mine = [pair for pair in self.pairs if pair.group == annotator.group]
        if self.is_of_answers:
            return sorted(mine, key=lambda pair: self._place(pair))
        place = self.annotators.index(annotator)
        chance = hashed(self.settings["seed"], "order", place, np.array([pair.number for pair in mine]))
        return [mine[n] for n in np.argsort(chance, kind="stable")]

    def _place(self, pair: StudyPair) -> tuple[int, int]:
        """Questions in their order, each with all of its passages."""
        return self.settings["answers"].index(pair.ids[0]), pair.number

    def with_answers(self, questions: Iterable[tuple[str, str, list[tuple[str, str]]]]) -> Study:
        """The study of answers of these questions: (id, text, passages as (id, text)). Pairs that were judged keep their
        numbers."""
        asked = [(q, text, p, passage) for q, text, passages in questions for p, passage in passages]
        known = {(*pair.ids, pair.context, pair.passage): pair.number for pair in self.pairs}
        wanted = {(q, p, text, passage) for q, text, p, passage in asked}
        pairs = [
            replace(pair, group=0 if (*pair.ids, pair.context, pair.passage) in wanted else RETIRED)
            for pair in self.pairs
        ]
        for q, text, p, passage in asked:
            if (q, p, text, passage) not in known:
                pairs.append(StudyPair(len(pairs), ANSWER, 0, passage, text, {}, (q, p)))
        order = list(dict.fromkeys(q for q, *_ in asked))
        return replace(self, settings={**self.settings, "answers": order}, pairs=pairs)


def of_answers() -> Study:
    """An empty study of answers, of one annotator."""
    annotator = Annotator("judge", 0, secrets.token_urlsafe(16))
    return Study({"answers": [], "annotators": 1}, secrets.token_urlsafe(16), [annotator], [])


def design(
    samples: list[tuple[str, str, str, dict[PairKind, dict[str, bool]]]], settings: dict[str, Any]
) -> Study:
    """A study of (passage, other passage, query, signals by kind) of each document."""
    half = len(samples) // 2
    chance = hashed(settings["seed"], "groups", np.arange(len(samples)))
    first = set(np.argsort(chance, kind="stable")[:half].tolist())
    pairs: list[StudyPair] = []
    for n, (passage, other, query, signals) in enumerate(samples):
        group = 0 if n in first else 1
        for kind, context, judged_by in ((KINDS[0], other, group), (KINDS[1], query, 1 - group)):
            pairs.append(StudyPair(len(pairs), kind, judged_by, passage, context, signals[kind]))
    annotators = [
        Annotator(f"{'AB'[group]}{number + 1}", group, secrets.token_urlsafe(16))
        for group in range(GROUPS)
        for number in range(settings["annotators"])
    ]
    return Study(settings, secrets.token_urlsafe(16), annotators, pairs)


def write(study: Study, root: Path) -> None:
    Workdir(root).write_json(FILE, asdict(study))


def read(root: Path) -> Study | None:
    """The study in this directory, if there is one."""
    if not (root / FILE).is_file():
        return None
    value = read_json(root / FILE, _Study)
    study = Study(
        value["settings"],
        value["organizer"],
        [Annotator(**row) for row in value["annotators"]],
        [StudyPair(**{**row, "ids": tuple(row.get("ids", ("", "")))}) for row in value["pairs"]],
    )
    numbers = [pair.number for pair in study.pairs]
    if numbers != list(range(len(numbers))):
        raise QontextError("damaged: its pairs are not numbered in order", place=root / FILE)
    return study
