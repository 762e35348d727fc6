"""The candidates that contain an answer to their question: they are no negatives, as in DPR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qontext.data.collection import read_passages
from qontext.data.runs import Run
from qontext.evaluation.answers import Question, read_questions, token_matcher, tokens
from qontext.frame.errors import QontextError


def passages_with_answers(
    runs: Sequence[Run], depth: int, answers: str, queries: Mapping[str, str], passages: str
) -> dict[str, set[str]]:
    """query → those of its first passages in the runs whose text contains an answer. `answers` are questions with
    answers, which must be the queries.
    """
    questions: dict[str, Question] = read_questions(answers)
    for query, text in queries.items():
        if query in questions and questions[query].text != text:
            raise QontextError(
                f"its question {query!r} is not that of the queries",
                place=answers,
                remedy="Pass the same file as --queries and as --answers.",
            )
    matchers = {query: token_matcher(question.answers) for query, question in questions.items()}
    asking: dict[str, dict[str, None]] = {}
    for run in runs:
        for query in (query for query in run.queries if query in matchers):
            for name in run.results(query)[0][:depth]:
                asking.setdefault(name, {})[query] = None
    answering: dict[str, set[str]] = {}
    for passage in read_passages(passages):
        if passage.id in asking:
            text = tokens(passage.text)
            for query in asking[passage.id]:
                if matchers[query](text):
                    answering.setdefault(query, set()).add(passage.id)
    return answering
