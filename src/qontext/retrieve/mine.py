"""`qontext mine`: runs and judgements → training groups with hard negatives.

Every judged training query becomes a group. From each run its negatives are the results from rank `skip` to
rank `depth` without the query's positives, filtered by score where asked, of which `per_query` are drawn by a
seed of the query's own: what a query gets depends on no other query.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from qontext import log, records
from qontext.artifacts import Workdir
from qontext.collection import check_qrels
from qontext.config import Input, StageConfig
from qontext.errors import QontextError
from qontext.retrieve.draws import Corpus, generator, some
from qontext.retrieve.groups import GROUPS, Group, read_candidates
from qontext.retrieve.inputs import asked_passages, asked_queries, judgements
from qontext.retrieve.runs import Run, read_run
from qontext.stages import Stage

_ROWS_PER_PART = 65_536


class MineConfig(StageConfig):
    run: Annotated[str, Input(positional=True)]
    """A run over the training queries, MS MARCO's qidpidtriples file, or sentence-transformers'
    msmarco-hard-negatives.jsonl.gz."""

    qrels: Annotated[str, Input(positional=True)]
    """The training judgements: a file, or a BEIR folder. Every query in them gets a group. Generated queries will do,
    too: each is answered by the passage that it was generated from."""

    also: Annotated[tuple[str, ...], Input()] = ()
    """More runs to take negatives from, such as BM25's beside the first retriever's."""

    split: str = "train"
    """The split whose judgements are meant, if they are a BEIR folder."""

    data: Annotated[str | None, Input()] = None
    """A BEIR folder with the queries and passages."""

    queries: Annotated[str | None, Input()] = None
    """Queries instead of --data."""

    passages: Annotated[str | None, Input()] = None
    """Passages instead of --data; needed for random and in-document negatives."""

    depth: int = Field(200, ge=1)
    """How far down a run negatives are looked for."""

    skip: int = Field(0, ge=0)
    """How many results at the top to leave out, since they may be unlabelled positives."""

    per_query: int = Field(30, ge=0)
    """Negatives per query from each run."""

    sample: Literal["random", "top"] = "random"
    """Which of the candidates: drawn at random, or the first."""

    margin: float | None = None
    """Keep a negative only if it scores at least this much less than the query's best-scored positive."""

    max_score: float | None = None
    """Keep a negative only if it scores at most this."""

    scores: Annotated[str | None, Input()] = None
    """A run whose scores --margin and --max-score look at, such as a cross-encoder's from `rerank`; by default
    each run's own. A negative without a score there is left out."""

    random: int = Field(0, ge=0)
    """Negatives per query drawn from all passages."""

    in_document: int = Field(0, ge=0)
    """Negatives per query drawn from the positives' documents."""

    min_grade: int = Field(1, ge=1)
    """The least grade of a positive."""

    limit: int | None = Field(None, ge=1)
    """At most so many queries, drawn by the seed. Default: all."""

    seed: int = 42
    """What the draws depend on, with the query's id."""


@dataclass
class Report:
    """What happened to the queries."""

    no_positive: int = 0
    not_in_run: int = 0
    positives_removed: int = 0
    filtered: int = 0
    unscored_positive: int = 0
    fewer_than_asked: int = 0
    lacking: list[str] = field(default_factory=list)


def run(config: MineConfig, work: Workdir) -> dict[str, Any]:
    queries = asked_queries(config.data, None, config.queries)
    qrels = judgements(config.qrels, config.split)
    drawn = None
    if config.passages or config.data:
        drawn = Corpus(asked_passages(config.data, config.passages), config.seed)
        check_qrels(qrels, queries, drawn.document, config.qrels)
    if drawn is None and (config.random or config.in_document):
        raise QontextError("random and in-document negatives need --passages or --data")
    if drawn is None and (unknown := next((q for q in qrels if q not in queries), None)):
        raise QontextError(f"names the query {unknown!r}, which is not among the queries", place=config.qrels)
    runs = [read_candidates(path) for path in (config.run, *config.also)]
    scores = read_run(config.scores) if config.scores else None
    if config.limit is not None and config.limit < len(qrels):
        qrels = {name: qrels[name] for name in some(qrels, config.limit, config.seed)}
    report, groups = Report(), []
    for query, judged in qrels.items():
        positives = [passage for passage, grade in judged.items() if grade >= config.min_grade]
        if not positives:
            report.no_positive += 1
            continue
        negatives: dict[str, None] = {}
        for number, one in enumerate(runs):
            negatives.update(dict.fromkeys(_from_run(one, number, query, positives, scores, config, report)))
        if drawn:
            negatives.update(dict.fromkeys(drawn.near(query, positives, config.in_document)))
            negatives.update(dict.fromkeys(drawn.anywhere(query, positives, config.random)))
        if drawn and (foreign := next((n for n in negatives if n not in drawn), None)):
            raise QontextError(
                f"names the passage {foreign!r}, which is not among the passages", place=config.run
            )
        if not negatives:
            report.lacking.append(query)
        report.fewer_than_asked += len(negatives) < config.per_query
        groups.append(Group(query, queries[query], positives, list(negatives)))
    if not groups:
        raise QontextError(
            f"no query has a positive (a grade of {config.min_grade} or more)", place=config.qrels
        )
    if len(report.lacking) == len(groups):
        raise QontextError(
            "no query got a negative: the run and the judgements have no query in common, or filters are too strict",
            place=config.run,
        )
    if report.lacking:
        log.warn(f"{len(report.lacking):,} of {len(groups):,} queries lack hard negatives.")
    for part, start in enumerate(range(0, len(groups), _ROWS_PER_PART)):
        rows = [group._asdict() for group in groups[start : start + _ROWS_PER_PART]]
        with work.write(f"groups-{part:05d}.parquet") as path:
            records.write_table(path, pa.Table.from_pylist(rows, schema=GROUPS))
    counts = [len(group.negatives) for group in groups]
    return {
        "queries": len(groups),
        "negatives": sum(counts),
        "negatives_per_query": round(sum(counts) / len(groups), 2),
        "queries_without_negatives": len(report.lacking),
        "such_as": report.lacking[:10],
        "queries_with_fewer_than_asked": report.fewer_than_asked,
        "queries_without_positives": report.no_positive,
        "queries_not_in_a_run": report.not_in_run,
        "positives_removed": report.positives_removed,
        "removed_by_score": report.filtered,
        "queries_whose_positive_has_no_score": report.unscored_positive,
    }


def _from_run(
    one: Run,
    number: int,
    query: str,
    positives: list[str],
    scores: Run | None,
    config: MineConfig,
    report: Report,
) -> list[str]:
    if query not in one:
        report.not_in_run += 1
        return []
    passages, own = one.results(query)
    candidates = passages[config.skip : config.depth]
    hard = [passage for passage in candidates if passage not in positives]
    report.positives_removed += len(candidates) - len(hard)
    kept = hard
    if config.margin is not None or config.max_score is not None:
        known = dict(zip(passages, own.tolist()))
        if scores is not None:
            known = dict(zip(*scores.results(query))) if query in scores else {}
        kept = _filtered(hard, known, positives, config, report)
    if config.sample == "top" or len(kept) <= config.per_query:
        return kept[: config.per_query]
    chosen = generator(config.seed, f"run {number}", query).choice(len(kept), config.per_query, replace=False)
    return [kept[i] for i in sorted(chosen)]


def _filtered(
    hard: list[str], known: dict[str, float], positives: list[str], config: MineConfig, report: Report
) -> list[str]:
    limit = np.inf if config.max_score is None else config.max_score
    if config.margin is not None:
        best = max((known[p] for p in positives if p in known), default=None)
        if best is None:
            report.unscored_positive += 1
        else:
            limit = min(limit, best - config.margin)
    if limit == np.inf:  # there is a margin, and no positive that it could be taken from
        return hard
    kept = [passage for passage in hard if known.get(passage, np.inf) <= limit]
    report.filtered += len(hard) - len(kept)
    return kept


STAGE = Stage(
    "mine",
    MineConfig,
    run,
    """qontext mine runs/bm25-train beir/fiqa/qrels/train.tsv --data beir/fiqa --depth 200 --per-query 30 --out groups
    qontext mine runs/dense-train train.tsv --also runs/bm25-train --data beir/fiqa --skip 5 --out groups
    qontext mine msmarco-hard-negatives.jsonl.gz qrels.train.tsv --queries queries.train.tsv --out groups""",
)
