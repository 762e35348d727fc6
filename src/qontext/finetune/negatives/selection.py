"""The choice of a query's negatives among the candidates, and `qontext.mine`, which works on runs in memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
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

NO_POSITIVE = "no query has a positive"
NO_NEGATIVE = (
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
    **selection: Any,
) -> Groups:
    """Mine hard negatives: the best passages of a run that are not judged relevant.

    Args:
        run: A run over the training queries (a `Run`, query → passage → score, or a path), or several, each of which gives
            its negatives.
        qrels: Query → passage → grade, a qrels file, or a folder in BEIR's layout.
        queries: Query id → text, or a file or folder with them. Default: those of the folder of `qrels`.
        passages: Passages, for negatives that are drawn from all of them (`random`) or the positives' documents.
        scores: A run with the scores for `margin`, such as a cross-encoder's. Default: each run's own.
        split: Split of the judgments of a folder in BEIR's layout.
        **selection: ``depth``, ``skip``, ``per_query``, ``sample``, ``margin``, ``random``, ``in_document`` and ``seed``, as
            for `qontext mine`.

    >>> run = Run.of([Hit("q", "p1", 3.0), Hit("q", "p2", 2.0), Hit("q", "p3", 1.0)])
    >>> groups = mine(run, {"q": {"p2": 1}}, {"q": "who grinds flour?"}, depth=3)
    >>> groups[0]
    Group(query='q', text='who grinds flour?', positives=['p2'], negatives=['p1', 'p3'])
    """
    several = [run] if isinstance(run, Mapping | str | os.PathLike) else run
    judged = load_qrels(qrels, split=split) if isinstance(qrels, str | os.PathLike) else qrels
    how, positives, report = Selection(**selection), positives_of(judged), Counter[str]()
    corpus = None if passages is None else Corpus.of(passages, how.seed)
    if corpus is None and (how.random or how.in_document):
        raise QontextError("random and in-document negatives need passages")
    if not positives:
        raise QontextError(NO_POSITIVE)
    if queries is None and isinstance(qrels, str | os.PathLike) and Path(qrels).is_dir():
        queries = qrels
    texts = read_queries(os.fspath(queries)) if isinstance(queries, str | os.PathLike) else queries
    texts = dict.fromkeys(positives, "") if texts is None else texts
    if unknown := next((name for name in positives if name not in texts), None):
        raise QontextError(f"the judgments name the query {unknown!r}, which is not in the queries")
    runs, opened = [as_run(one) for one in several], None if scores is None else as_run(scores)
    sources = NegativeSources(texts, runs, corpus, opened, {})
    places = sources.places(positives.values())
    if unjudged := next((id for id, row in places.items() if row < 0), None):
        raise QontextError(f"the judgments name the passage {unjudged!r}, which is not in the passages")
    groups = Groups(group_of(query, own, places, sources, how, report) for query, own in positives.items())
    sources.check(groups, "the run")
    if report["queries_without_negatives"] == len(groups):
        raise QontextError(NO_NEGATIVE)
    return groups


def positives_of(qrels: Qrels) -> dict[str, list[str]]:
    """The positives of each query that has some."""
    positives = {
        query: [passage for passage, grade in grades.items() if grade > 0] for query, grades in qrels.items()
    }
    return {query: passages for query, passages in positives.items() if passages}


def group_of(
    query: str,
    positives: list[str],
    places: Mapping[str, int],
    sources: NegativeSources,
    how: Selection,
    report: Counter[str],
) -> Group:
    """The query with its positives and negatives; the counts go into the report."""
    negatives: dict[str, None] = {}
    answering, corpus = sources.answering.get(query, ()), sources.drawn
    for number, one in enumerate(sources.runs):
        hard = _from_run(one, number, query, positives, answering, sources.scores, how, report)
        negatives.update(dict.fromkeys(hard))
    if corpus:
        own = {id: places[id] for id in positives}
        drawn = corpus.draw(query, own, how.in_document, how.random)
        without = [passage for passage in drawn if passage not in answering]
        report["removed_by_answer"] += len(drawn) - len(without)
        negatives.update(dict.fromkeys(without))
    report["queries"] += 1
    report["negatives"] += len(negatives)
    report["queries_without_negatives"] += not negatives
    report["queries_with_too_few_negatives"] += len(negatives) < how.per_query
    return Group(query, sources.queries[query], positives, list(negatives))


def _from_run(
    one: Run,
    number: int,
    query: str,
    positives: list[str],
    answering: Container[str],
    scores: Run | None,
    how: Selection,
    report: Counter[str],
) -> list[str]:
    if query not in one:
        report["queries_not_in_a_run"] += 1
        return []
    passages, own = one.results(query)
    candidates = passages[how.skip : how.depth]
    hard = [passage for passage in candidates if passage not in positives]
    remaining = [passage for passage in hard if passage not in answering]
    report["positives_removed"] += len(candidates) - len(hard)
    report["removed_by_answer"] += len(hard) - len(remaining)
    if how.margin is not None:
        score_of = dict(zip(passages, own.tolist()))
        if scores is not None:
            score_of = dict(zip(*scores.results(query))) if query in scores else {}
        best = max((score_of[p] for p in positives if p in score_of), default=np.inf)
        report["queries_whose_positive_has_no_score"] += int(best == np.inf)
        # Without a scored positive, all that have a score remain.
        kept = [p for p in remaining if p in score_of and score_of[p] <= best - how.margin]
        report["removed_by_score"] += len(remaining) - len(kept)
        remaining = kept
    if how.sample == "top" or len(remaining) <= how.per_query:
        return remaining[: how.per_query]
    numbers = generator(how.seed, f"run {number}", query).choice(len(remaining), how.per_query, replace=False)
    return [remaining[i] for i in sorted(numbers)]


def confident(scored: Run, share: float) -> Qrels:
    """Each query's passages that have at least this share of the softmax over its scores."""
    qrels: Qrels = {}
    for query in scored:
        passages, scores = scored.results(query)
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        qrels[query] = {passage: 1 for passage, own in zip(passages, shares.tolist()) if own >= share}
    return qrels
