"""The sources of negatives: runs, all passages, the documents of a query's positives. Candidates that contain an answer to
their question are no negatives, as in DPR."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qontext.data.collection import Passage, read_passages
from qontext.data.runs import Run
from qontext.evaluation.answers import Question, read_questions, token_matcher, tokens
from qontext.finetune.negatives.groups import Group
from qontext.frame.errors import QontextError
from qontext.training.randomness import generator


@dataclass(frozen=True)
class NegativeSources:
    """The sources of negatives. `answering` has, for each query, the passages with an answer, which are no negatives."""

    queries: Mapping[str, str]
    runs: Sequence[Any]
    drawn: Corpus | None
    scores: Run | None
    answering: Mapping[str, Container[str]]

    def places(self, positives: Iterable[Sequence[str]]) -> Mapping[str, int]:
        """The numbers of these passages in the corpus, if there is one."""
        ids = list(dict.fromkeys(id for own in positives for id in own))
        return {} if self.drawn is None else dict(zip(ids, self.drawn.rows(ids).tolist()))

    def check(self, groups: Sequence[Group], place: str) -> None:
        """Refuse negatives that are not in the corpus."""
        unknown = [id for id, row in self.places(group.negatives for group in groups).items() if row < 0]
        if unknown:
            raise QontextError(f"names the passage {unknown[0]!r}, which is not in the passages", place=place)


class Corpus:
    """The passages' ids and documents, to check against and to draw from, in compact arrays: no Python object for each.

    Ids are looked up many at a time, which costs a pass over all ids.
    """

    def __init__(self, columns: Iterable[tuple[pa.Array, pa.Array]], seed: int) -> None:
        self.seed = seed
        columns = list(columns)
        self.ids = _whole([ids for ids, _ in columns])
        documents = _whole([documents for _, documents in columns]).dictionary_encode()
        self._documents: np.ndarray[Any, Any] = documents.indices.to_numpy()
        self._names = documents.dictionary

    @classmethod
    def of(cls, passages: Iterable[Passage], seed: int) -> Corpus:
        """Passages in memory."""
        passages = list(passages)
        ids, documents = [passage.id for passage in passages], [passage.doc for passage in passages]
        return cls([(pa.array(ids, pa.string()), pa.array(documents, pa.string()))], seed)

    def rows(self, ids: Sequence[str]) -> np.ndarray[Any, Any]:
        """The number of each passage, -1 if there is none with this id."""
        found = pc.index_in(pa.array(ids, pa.large_string()), value_set=self.ids)
        rows: np.ndarray[Any, Any] = found.fill_null(-1).to_numpy()
        return rows

    def draw(self, query: str, positives: Mapping[str, int], in_document: int, random: int) -> list[str]:
        """Negatives of a query: up to `in_document` other passages of the documents of its positives (id → row), and up to
        `random` of all passages."""
        negatives: list[str] = []
        if in_document:
            codes = {int(self._documents[row]) for row in positives.values()}
            documents = sorted(codes, key=lambda code: str(self._names[code]))
            spans = (self._by_document[self._starts[code] : self._starts[code + 1]] for code in documents)
            rows = [row for span in spans for row in span.tolist() if row not in positives.values()]
            order = generator(self.seed, "document", query).permutation(len(rows))
            negatives += [self.ids[rows[i]].as_py() for i in order[:in_document]]
        if random:
            size = min(random + len(positives), len(self.ids))
            drawn = generator(self.seed, "random", query).choice(len(self.ids), size, replace=False)
            ids = (self.ids[int(row)].as_py() for row in drawn)
            negatives += islice((id for id in ids if id not in positives), random)
        return negatives

    @cached_property
    def _by_document(self) -> np.ndarray[Any, Any]:
        """[P] the rows, ordered by document."""
        return np.argsort(self._documents, kind="stable")

    @cached_property
    def _starts(self) -> np.ndarray[Any, Any]:
        """The start of each document's rows in this order, and their end."""
        return np.concatenate([[0], np.cumsum(np.bincount(self._documents, minlength=len(self._names)))])


def _whole(chunks: list[pa.Array]) -> pa.LargeStringArray:
    """One array, in which values are found faster than in many; large, since ids may have more than 2 GB."""
    return pa.chunked_array(chunks, pa.string()).cast(pa.large_string()).combine_chunks()


def passages_with_answers(
    runs: Sequence[Run],
    depth: int,
    answers: str,
    queries: Mapping[str, str],
    passages: str,
    drawn: Mapping[str, Sequence[str]],
) -> dict[str, set[str]]:
    """query → those of its first passages in the runs, and of those `drawn` for it, whose text contains an answer. `answers`
    are questions with answers, which must be the queries.
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
    for query in matchers:
        for name in drawn.get(query, ()):
            asking.setdefault(name, {})[query] = None
    answering: dict[str, set[str]] = {}
    for passage in read_passages(passages):
        if passage.id in asking:
            text = tokens(passage.text)
            for query in asking[passage.id]:
                if matchers[query](text):
                    answering.setdefault(query, set()).add(passage.id)
    return answering
