"""Answer recall for question answering sets: does one of the top k passages contain an answer?

As in DPR: text and answers are normalized to Unicode NFD, split into runs of letters, digits and marks (every
other visible character is a separate token), lowercased, and an answer counts if its tokens are consecutive
in the passage. Sets whose answers are patterns (CuratedTREC) match them as regular expressions instead,
ignoring case.
"""

from __future__ import annotations

import os
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import regex  # type: ignore[import-untyped]  # a dependency of transformers

from qontext.data import dpr
from qontext.data.ids import id_of
from qontext.data.lines import plain_name, read_jsonl
from qontext.data.runs import Run
from qontext.evaluation.benchmarks import BENCHMARKS, Benchmark
from qontext.evaluation.measures import DEPTHS, Floats, Scores
from qontext.frame import log
from qontext.frame.config import existing
from qontext.frame.errors import QontextError, shorten
from qontext.frame.files import StrPath

PATTERN_SECONDS = 10.0
"""CPU time limit for one question's patterns: some take exponential time on some texts."""

# DPR's tokens: letters, numbers and marks together; any other character that is neither space nor control.
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


@dataclass(frozen=True)
class Question:
    """A question and the strings that answer it."""

    text: str
    answers: tuple[str, ...]


def tokens(text: str) -> str:
    """A text's normalized tokens, joined by spaces, so that token sequences can be found as substrings."""
    return f" {' '.join(_TOKEN.findall(unicodedata.normalize('NFD', text))).lower()} "


def token_matcher(answers: Sequence[str]) -> Callable[[str], bool]:
    """True if a passage, passed as `tokens(text)`, contains one of the answers."""
    texts = [text for text in map(tokens, answers) if text.strip()]
    return lambda passage: any(answer in passage for answer in texts)


def pattern_matcher(answers: Sequence[str]) -> Callable[[str], bool]:
    """True if a passage, passed as `normalized(text)`, matches one of the patterns.

    Raises TimeoutError once all its searches together took PATTERN_SECONDS.
    """
    flags = regex.IGNORECASE | regex.UNICODE | regex.MULTILINE
    patterns = []
    for answer in answers:
        try:
            patterns.append(regex.compile(normalized(answer), flags))
        except (regex.error, RecursionError) as error:
            raise QontextError(
                f"the answer {shorten(answer, 200)!r} is not a regular expression: {error}"
            ) from None
    end = time.process_time() + PATTERN_SECONDS

    def matches(passage: str) -> bool:
        for pattern in patterns:
            if (left := end - time.process_time()) <= 0:
                raise TimeoutError
            if pattern.search(passage, timeout=left):
                return True
        return False

    return matches


def normalized(text: str) -> str:
    """The normalized text for patterns."""
    return unicodedata.normalize("NFD", text)


def answer_ranks(
    run: Run,
    questions: Mapping[str, Question],
    texts: Mapping[str, str],
    *,
    depth: int,
    patterns: bool = False,
) -> Floats:
    """[Q] the rank, from 1, of the first passage that contains an answer to each question; else infinity.

    `texts` maps passage ids to texts. A question without results has no answer. NaN if the patterns take too
    long.
    """
    number = {query: q for q, query in enumerate(run.queries)}
    prepare = normalized if patterns else tokens
    prepared: dict[str, str] = {}
    ranks = np.full(len(questions), np.inf)

    def first(passages: Sequence[str], holds: Callable[[str], bool]) -> float:
        for rank, passage in enumerate(passages, start=1):
            if passage not in texts:
                raise QontextError(
                    f"the run contains the passage {passage!r}, which is not in the passages",
                    remedy="Pass the passages that were searched.",
                )
            if passage not in prepared:
                prepared[passage] = prepare(texts[passage])
            if holds(prepared[passage]):
                return rank
        return np.inf

    for i, (id, question) in enumerate(questions.items()):
        if id not in number:
            continue
        holds = (pattern_matcher if patterns else token_matcher)(question.answers)
        try:
            ranks[i] = first(run.rows(number[id])[0][:depth], holds)
        except TimeoutError:
            log.warn(f"the patterns of question {id!r} take too long; it counts as not answered.")
            ranks[i] = np.nan
    return ranks


def is_questions(place: StrPath) -> bool:
    """True for a file that contains questions with answers rather than judgments."""
    path = Path(place)
    return path.is_file() and (plain_name(path).endswith(".jsonl") or dpr.is_questions(path))


def recognize(path: Path, count: int) -> Benchmark | None:
    """The benchmark of a file with an official name and the right number of questions."""
    name = plain_name(path)
    official = [b for b in BENCHMARKS.values() if b.source.startswith("https:") and b.queries == count]
    return next((b for b in official if b.source.rpartition("/")[2].removesuffix(".gz") == name), None)


def read_questions(source: Path | str) -> dict[str, Question]:
    """id → question, from DPR's files, or JSON lines with question and answers."""
    path = existing(source, "questions with answers")
    is_lines = plain_name(path).endswith(".jsonl")
    questions: dict[str, Question] = {}
    for place, id, text, answers in _json_questions(path) if is_lines else dpr.questions(path):
        if id in questions:
            raise QontextError(f"the question id {id!r} occurs twice", place=place)
        questions[id] = Question(text, answers)
    if not questions:
        raise QontextError("contains no questions", place=path)
    return questions


def _json_questions(path: Path) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    for number, (place, row) in enumerate(read_jsonl(path)):
        text, answers = row.get("question", row.get("text")), row.get("answers", row.get("answer"))
        id = id_of(row.get("_id", row.get("id", number)), place)
        yield place, id, *dpr.checked(text, answers, place)


def by_answers(
    results: Run,
    qrels: str,
    measures: str,
    passages: StrPath | None,
    patterns: bool,
) -> tuple[Scores, dict[str, list[float]]]:
    """The scores of a run by answer strings, and its curve by depth."""
    from qontext.data.collection import read_passages

    if passages is None:
        raise QontextError("finding answers needs --passages", remedy="Add --passages.")
    questions = read_questions(qrels)
    names = measures.replace(",", " ").split()
    cutoffs = {name: _answer_cutoff(name) for name in names or ["Answer@5", "Answer@20", "Answer@100"]}
    if results.queries and questions.keys().isdisjoint(results.queries):
        raise QontextError(f"no query of the run is a question of {qrels}", place=results.queries[0])
    ids = set(results.top(max(*cutoffs.values(), *DEPTHS)).ids.tolist())
    texts = {p.id: p.text for p in read_passages(os.fspath(passages)) if p.id in ids}
    ranks = answer_ranks(results, questions, texts, depth=max(DEPTHS), patterns=patterns)
    in_run = sum(query in questions for query in results.queries)
    values: dict[str, Floats] = {name: (ranks <= k).astype(float) for name, k in cutoffs.items()}
    unjudged, timed_out = len(results.queries) - in_run, int(np.isnan(ranks).sum())
    benchmark = recognize(Path(qrels), len(questions))
    scores = Scores(
        list(questions),
        values,
        len(questions) - in_run,
        0,
        unjudged,
        timed_out,
        benchmark.name if benchmark else None,
    )
    return scores, {"Answer": [float((ranks <= k).mean()) for k in DEPTHS]}


def _answer_cutoff(name: str) -> int:
    from qontext.evaluation.measures import DEPTHS

    head, _, depth = name.partition("@")
    if head != "Answer" or not depth.isdecimal() or not 1 <= int(depth) <= max(DEPTHS):
        raise QontextError(
            f"{name!r} cannot be computed from answers", remedy=f"Use Answer@k, with k up to {max(DEPTHS)}."
        )
    return int(depth)
