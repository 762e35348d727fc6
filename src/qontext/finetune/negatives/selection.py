"""The choice of a query's negatives among the candidates, and `qontext.mine`, which works on runs in memory."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qontext.data.collection import Passage, Qrels, read_queries
from qontext.data.load import AnyRun, as_run, load_qrels
from qontext.data.runs import Run
from qontext.finetune.negatives.groups import Group, Groups
from qontext.finetune.negatives.sources import Corpus, NegativeSources
from qontext.frame.errors import QontextError
from qontext.frame.files import StrPath
from qontext.training.randomness import generator

NAMED = 10
"""Maximum number of queries without negatives to name."""


NOTHING = (
    "no query got a negative: the run and the judgments have no query in common, or filters are too strict"
)


@dataclass(frozen=True)
class Selection:
    """The rules by which negatives are selected; see the settings of `mine`."""

    depth: int = 200
    skip: int = 0
    per_query: int = 30
    sample: Literal["random", "top"] = "random"
    margin: float | None = None
    max_score: float | None = None
    random: int = 0
    in_document: int = 0
    seed: int = 42


def mine(
    run: AnyRun | Sequence[AnyRun],
    qrels: Qrels | StrPath,
    queries: Mapping[str, str] | StrPath | None = None,
    passages: Iterable[Passage] | None = None,
    *,
    scores: AnyRun | None = None,
    split: str = "train",
    min_grade: int = 1,
    **selection: Any,
) -> Groups:
    """Mine hard negatives: the best passages of a run that are not judged relevant.

    Args:
        run: A run over the training queries (a `Run`, query → passage → score, or a path), or several, each of which gives
            its negatives.
        qrels: Query → passage → grade, a qrels file, or a folder in BEIR's layout.
        queries: Query id → text, or a file or folder with them. Default: those of the folder of `qrels`.
        passages: Passages, for negatives that are drawn from all of them (`random`) or the positives' documents.
        scores: A run with the scores for `margin` and `max_score`, such as a cross-encoder's. Default: each run's own.
        split: Split of the judgments of a folder in BEIR's layout.
        min_grade: Minimum grade of a positive.
        **selection: ``depth``, ``skip``, ``per_query``, ``sample``, ``margin``, ``max_score``, ``random``, ``in_document``
            and ``seed``, as for `qontext mine`.

    >>> run = Run.of([Hit("q", "p1", 3.0), Hit("q", "p2", 2.0), Hit("q", "p3", 1.0)])
    >>> groups = mine(run, {"q": {"p2": 1}}, {"q": "who grinds flour?"}, depth=3)
    >>> groups[0]
    Group(query='q', text='who grinds flour?', positives=['p2'], negatives=['p1', 'p3'])
    """
    several = [run] if isinstance(run, Mapping | str | os.PathLike) else run
    runs = [as_run(one) for one in several]
    judged = load_qrels(qrels, split=split) if isinstance(qrels, str | os.PathLike) else qrels
    how = _selection(selection)
    if passages is None and (how.random or how.in_document):
        raise QontextError("random and in-document negatives need passages")
    corpus = None if passages is None else Corpus.of(passages, how.seed)
    opened = None if scores is None else as_run(scores)
    positives = positives_of(judged, min_grade)
    if not positives:
        raise QontextError(f"no query has a positive (a grade of {min_grade} or more)")
    sources = NegativeSources(_texts(positives, queries, qrels), runs, corpus, opened, {})
    places, report = sources.places(positives.values()), SelectionReport()
    if unjudged := next((id for id, row in places.items() if row < 0), None):
        raise QontextError(f"the judgments name the passage {unjudged!r}, which is not in the passages")
    groups = Groups(group_of(query, own, places, sources, how, report) for query, own in positives.items())
    sources.check(groups, "the run")
    if report.lacking == report.queries:
        raise QontextError(NOTHING)
    return groups


def _texts(
    names: Iterable[str], queries: Mapping[str, str] | StrPath | None, qrels: Qrels | StrPath
) -> dict[str, str]:
    """The texts of these queries; empty if no queries are given."""
    if queries is None and isinstance(qrels, str | os.PathLike) and Path(qrels).is_dir():
        queries = qrels
    if queries is None:
        return dict.fromkeys(names, "")
    texts = read_queries(os.fspath(queries)) if isinstance(queries, str | os.PathLike) else queries
    if unknown := next((name for name in names if name not in texts), None):
        raise QontextError(f"the judgments name the query {unknown!r}, which is not in the queries")
    return {name: texts[name] for name in names}


def _selection(settings: Mapping[str, Any]) -> Selection:
    known = Selection.__dataclass_fields__
    if unknown := next((name for name in settings if name not in known), None):
        raise QontextError(f"unknown setting of mine {unknown!r}: choose from {', '.join(known)}")
    for name, least in (("depth", 1), ("per_query", 1), ("skip", 0), ("random", 0), ("in_document", 0)):
        if name in settings and settings[name] < least:
            raise QontextError(f"{name} = {settings[name]}: it must be at least {least}")
    return Selection(**settings)


def positives_of(qrels: Qrels, min_grade: int) -> dict[str, list[str]]:
    """The positives of each query that has some."""
    positives = {
        query: [passage for passage, grade in grades.items() if grade >= min_grade]
        for query, grades in qrels.items()
    }
    return {query: passages for query, passages in positives.items() if passages}


@dataclass
class SelectionReport:
    """Counts of the queries of a part, or of all."""

    queries: int = 0
    negatives: int = 0
    not_in_run: int = 0
    positives_removed: int = 0
    filtered: int = 0
    with_answers: int = 0
    unscored_positive: int = 0
    too_few: int = 0
    lacking: int = 0
    examples_without_negatives: list[str] = field(default_factory=list)
    """The first queries without negatives."""

    @classmethod
    def total(cls, parts: Sequence[SelectionReport]) -> SelectionReport:
        """The sum of the reports, in order."""
        total = cls()
        for part in parts:
            for name, value in asdict(part).items():
                setattr(total, name, getattr(total, name) + value)
        total.examples_without_negatives = total.examples_without_negatives[:NAMED]
        return total

    def summary(self, no_positive: int) -> dict[str, Any]:
        return {
            "queries": self.queries,
            "negatives": self.negatives,
            "negatives_per_query": round(self.negatives / self.queries, 2),
            "queries_without_negatives": self.lacking,
            "examples_without_negatives": self.examples_without_negatives,
            "queries_with_too_few_negatives": self.too_few,
            "queries_without_positives": no_positive,
            "queries_not_in_a_run": self.not_in_run,
            "positives_removed": self.positives_removed,
            "removed_by_score": self.filtered,
            **({"removed_by_answer": self.with_answers} if self.with_answers else {}),
            "queries_whose_positive_has_no_score": self.unscored_positive,
        }


def group_of(
    query: str,
    positives: list[str],
    places: Mapping[str, int],
    sources: NegativeSources,
    how: Selection,
    report: SelectionReport,
) -> Group:
    """The query with its positives and negatives."""
    negatives: dict[str, None] = {}
    answering, corpus = sources.answering.get(query, ()), sources.drawn
    for number, one in enumerate(sources.runs):
        hard = _from_run(one, number, query, positives, answering, sources.scores, how, report)
        negatives.update(dict.fromkeys(hard))
    if corpus:
        own = {id: places[id] for id in positives}
        drawn = corpus.draw(query, own, how.in_document, how.random)
        without = [passage for passage in drawn if passage not in answering]
        report.with_answers += len(drawn) - len(without)
        negatives.update(dict.fromkeys(without))
    if not negatives:
        report.lacking += 1
        report.examples_without_negatives = [*report.examples_without_negatives, query][:NAMED]
    report.queries += 1
    report.negatives += len(negatives)
    report.too_few += len(negatives) < how.per_query
    return Group(query, sources.queries[query], positives, list(negatives))


def _from_run(
    one: Run,
    number: int,
    query: str,
    positives: list[str],
    answering: Container[str],
    scores: Run | None,
    how: Selection,
    report: SelectionReport,
) -> list[str]:
    if query not in one:
        report.not_in_run += 1
        return []
    passages, own = one.results(query)
    candidates = passages[how.skip : how.depth]
    hard = [passage for passage in candidates if passage not in positives]
    report.positives_removed += len(candidates) - len(hard)
    without = [passage for passage in hard if passage not in answering]
    report.with_answers += len(hard) - len(without)
    remaining = hard = without
    if how.margin is not None or how.max_score is not None:
        score_of = dict(zip(passages, own.tolist()))
        if scores is not None:
            score_of = dict(zip(*scores.results(query))) if query in scores else {}
        remaining = _filtered(hard, score_of, positives, how, report)
    if how.sample == "top" or len(remaining) <= how.per_query:
        return remaining[: how.per_query]
    numbers = generator(how.seed, f"run {number}", query).choice(len(remaining), how.per_query, replace=False)
    return [remaining[i] for i in sorted(numbers)]


def _filtered(
    hard: list[str], score_of: dict[str, float], positives: list[str], how: Selection, report: SelectionReport
) -> list[str]:
    limit = np.inf if how.max_score is None else how.max_score
    if how.margin is not None:
        best = max((score_of[p] for p in positives if p in score_of), default=None)
        if best is None:
            report.unscored_positive += 1
        else:
            limit = min(limit, best - how.margin)
    # Where there is a margin, but no scored positive, all that have a score remain.
    remaining = [passage for passage in hard if passage in score_of and score_of[passage] <= limit]
    report.filtered += len(hard) - len(remaining)
    return remaining


def confident(scored: Run, share: float) -> Qrels:
    """Each query's passages that have at least this share of the softmax over its scores."""
    qrels: Qrels = {}
    for query in scored:
        passages, scores = scored.results(query)
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        qrels[query] = {passage: 1 for passage, own in zip(passages, shares.tolist()) if own >= share}
    return qrels
