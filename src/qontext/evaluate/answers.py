"""Answer recall for question answering sets: does one of the top k passages contain an answer?

As in DPR: text and answers are normalised to Unicode NFD, split into runs of letters, digits and marks
(every other visible character is a token of its own), lowercased, and an answer counts when its tokens stand
in the passage one behind the other. Sets whose answers are patterns (CuratedTREC) match them as regular
expressions instead, ignoring case.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import regex  # type: ignore[import-untyped]  # a dependency of transformers

from qontext import dpr
from qontext.collection import read_jsonl
from qontext.config import existing
from qontext.errors import QontextError
from qontext.evaluate.datasets import BENCHMARKS, Benchmark
from qontext.evaluate.kernels import Floats
from qontext.retrieve.runs import Run

# DPR's tokens: letters, numbers and marks together; any other character that is neither space nor control.
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


@dataclass(frozen=True)
class Question:
    """A question and the strings that answer it."""

    text: str
    answers: tuple[str, ...]


def tokens(text: str) -> str:
    """A text's normalised tokens between single spaces: to contain tokens is to contain a string."""
    return f" {' '.join(_TOKEN.findall(unicodedata.normalize('NFD', text))).lower()} "


def token_matcher(answers: Sequence[str]) -> Callable[[str], bool]:
    """Whether a passage, given as `tokens(text)`, contains one of the answers."""
    wanted = [found for found in map(tokens, answers) if found.strip()]
    return lambda passage: any(answer in passage for answer in wanted)


def pattern_matcher(answers: Sequence[str]) -> Callable[[str], bool]:
    """Whether a passage's text matches one of the patterns."""
    patterns = []
    for answer in answers:
        try:
            patterns.append(
                re.compile(unicodedata.normalize("NFD", answer), re.IGNORECASE | re.UNICODE | re.MULTILINE)
            )
        except re.error as error:
            raise QontextError(f"the answer {answer!r} is not a regular expression: {error}") from None
    return lambda passage: any(p.search(unicodedata.normalize("NFD", passage)) for p in patterns)


def answer_ranks(
    run: Run,
    questions: Mapping[str, Question],
    texts: Mapping[str, str],
    *,
    depth: int,
    patterns: bool = False,
) -> Floats:
    """[Q] the rank, from 1, of the first passage that holds an answer to each question; else infinity.

    `texts` maps passage ids to texts. A question that the run lacks has no answer in its results.
    """
    number = {query: q for q, query in enumerate(run.queries)}
    prepare: Callable[[str], str] = (lambda text: text) if patterns else tokens
    prepared: dict[str, str] = {}
    ranks = np.full(len(questions), np.inf)
    for i, (id, question) in enumerate(questions.items()):
        if id not in number:
            continue
        holds = (pattern_matcher if patterns else token_matcher)(question.answers)
        for rank, passage in enumerate(run.rows(number[id])[0][:depth], start=1):
            if passage not in texts:
                raise QontextError(
                    f"the run names the passage {passage!r}, which is not among the passages",
                    remedy="Give the passages that were searched.",
                )
            if passage not in prepared:
                prepared[passage] = prepare(texts[passage])
            if holds(prepared[passage]):
                ranks[i] = rank
                break
    return ranks


def is_questions(path: Path) -> bool:
    """Whether a file holds questions with answers rather than judgements."""
    return dpr.plain_name(path).endswith(".jsonl") or dpr.is_questions(path)


def recognise(path: Path, count: int) -> Benchmark | None:
    """The benchmark of an officially named file with the right number of questions."""
    name = dpr.plain_name(path)
    official = [b for b in BENCHMARKS.values() if b.source.startswith("https:") and b.queries == count]
    return next((b for b in official if b.source.rpartition("/")[2].removesuffix(".gz") == name), None)


def read_questions(source: Path | str) -> dict[str, Question]:
    """id → question, from DPR's files, or JSON lines with question and answers."""
    path = existing(source, "questions with answers")
    is_lines = dpr.plain_name(path).endswith(".jsonl")
    questions: dict[str, Question] = {}
    for place, id, text, answers in _json_questions(path) if is_lines else dpr.questions(path):
        if id in questions:
            raise QontextError(f"the question id {id!r} occurs twice", place=place)
        questions[id] = Question(text, answers)
    if not questions:
        raise QontextError("holds no questions", place=path)
    return questions


def _json_questions(path: Path) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    for number, (place, row) in enumerate(read_jsonl(path)):
        text, answers = row.get("question", row.get("text")), row.get("answers", row.get("answer"))
        if not isinstance(text, str) or not isinstance(answers, list) or not answers:
            raise QontextError("expected a question and a list of at least one answer", place=place)
        yield place, str(row.get("_id", row.get("id", number))), text, tuple(map(str, answers))
