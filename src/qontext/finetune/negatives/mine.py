"""`qontext mine`: runs and judgments → training groups with hard negatives.

Every judged training query becomes a group; a part is a slice of them. From each run its negatives are the
results from rank `skip` to rank `depth` without the query's positives, optionally filtered by score, of which
`per_query` are drawn with a seed of the query, independently of other queries.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from qontext.frame import log
from qontext.frame.artifacts import LOGS
from qontext.frame.config import Input, Seed
from qontext.frame.damage import read_json
from qontext.frame.errors import QontextError
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig, slices
from qontext.frame.stages import Stage

if TYPE_CHECKING:
    from qontext.data.collection import Qrels
    from qontext.data.runs import Run
    from qontext.finetune.negatives.groups import Group
    from qontext.finetune.negatives.sources import Sources

PART = 65_536
"""Queries of a part."""
NAMED = 10
"""Maximum number of queries without negatives to name."""


class MineConfig(PartsConfig):
    run: Annotated[str, Input(positional=True)]
    """A run over the training queries, MS MARCO's qidpidtriples file, sentence-transformers'
    msmarco-hard-negatives.jsonl.gz, or DPR's biencoder-nq-train.json."""

    qrels: Annotated[str, Input(positional=True)]
    """Training judgments: a file or a BEIR folder, or DPR's training file. Every query in them gets a group. Generated
    queries are accepted, too: the relevant passage of each is the one from which it was generated. With
    --positives-share, a cross-encoder's run instead of judgments."""

    also: Annotated[tuple[str, ...], Input()] = ()
    """Additional runs to take negatives from, such as BM25's."""

    split: str = "train"
    """Split of the judgments, if they are a BEIR folder."""

    data: Annotated[str | None, Input()] = None
    """A BEIR folder with the queries and passages."""

    queries: Annotated[str | None, Input()] = None
    """Queries, instead of --data."""

    passages: Annotated[str | None, Input()] = None
    """Passages, instead of --data; needed for random and in-document negatives."""

    depth: int = Field(200, ge=1)
    """Lowest rank of a run to take negatives from."""

    skip: int = Field(0, ge=0)
    """Number of top results to skip, since they may be unlabeled positives."""

    per_query: int = Field(30, ge=0)
    """Negatives per query from each run."""

    sample: Literal["random", "top"] = "random"
    """Take candidates at random, or the first ones."""

    margin: float | None = None
    """Keep a negative only if its score is lower than that of the query's best-scored positive by at least
    this margin."""

    max_score: float | None = None
    """Keep a negative only if its score is at most this."""

    scores: Annotated[str | None, Input()] = None
    """Run with the scores for --margin and --max-score, such as a cross-encoder's from `rerank`. Default:
    each run's own scores. Negatives without a score in it are dropped."""

    answers: Annotated[str | None, Input()] = None
    """Questions with answers, such as DPR's biencoder-nq-train.json: passages that contain an answer are no negatives.
    Needs --passages."""

    random: int = Field(0, ge=0)
    """Negatives per query drawn from all passages."""

    in_document: int = Field(0, ge=0)
    """Negatives per query drawn from the positives' documents."""

    min_grade: int = Field(1, ge=1)
    """Minimum grade of a positive."""

    positives_share: float | None = Field(None, gt=0, le=1)
    """Label queries without judgments by a cross-encoder (RocketQA): a passage is a positive if it has at least this share
    of the softmax over the query's scores, such as 0.9. QRELS is then a run from `rerank`."""

    limit: int | None = Field(None, ge=1)
    """Maximum number of queries, drawn with the seed. Default: all."""

    seed: Seed = 42
    """Random seed, combined with the query's id."""


@dataclass
class Report:
    """Counts of the queries of a part, or of all."""

    queries: int = 0
    negatives: int = 0
    not_in_run: int = 0
    positives_removed: int = 0
    filtered: int = 0
    with_answers: int = 0
    unscored_positive: int = 0
    fewer_than_asked: int = 0
    lacking: int = 0
    such_as: list[str] = field(default_factory=list)
    """The first queries without negatives."""

    @classmethod
    def total(cls, parts: Sequence[Report]) -> Report:
        """The sum of the reports, in order."""
        total = cls()
        for part in parts:
            for name, value in asdict(part).items():
                setattr(total, name, getattr(total, name) + value)
        total.such_as = total.such_as[:NAMED]
        return total

    def summary(self, no_positive: int) -> dict[str, Any]:
        return {
            "queries": self.queries,
            "negatives": self.negatives,
            "negatives_per_query": round(self.negatives / self.queries, 2),
            "queries_without_negatives": self.lacking,
            "such_as": self.such_as,
            "queries_with_fewer_than_asked": self.fewer_than_asked,
            "queries_without_positives": no_positive,
            "queries_not_in_a_run": self.not_in_run,
            "positives_removed": self.positives_removed,
            "removed_by_score": self.filtered,
            **({"removed_by_answer": self.with_answers} if self.with_answers else {}),
            "queries_whose_positive_has_no_score": self.unscored_positive,
        }


class Mine(Parts[MineConfig]):
    unit = "queries"

    @cached_property
    def qrels(self) -> Qrels:
        return _judgments(self.config)

    @cached_property
    def judged(self) -> Qrels:
        """The judgments; with a limit, those of some queries."""
        from qontext.training.randomness import sample_names

        config, qrels = self.config, self.qrels
        if config.limit is None or config.limit >= len(qrels):
            return qrels
        return {name: qrels[name] for name in sample_names(qrels, config.limit, config.seed)}

    @cached_property
    def positives(self) -> dict[str, list[str]]:
        """The positives of each query that has some."""
        least = self.config.min_grade
        positives = {
            query: [passage for passage, grade in grades.items() if grade >= least]
            for query, grades in self.judged.items()
        }
        return {query: passages for query, passages in positives.items() if passages}

    def plan(self) -> list[Part]:
        if not self.positives:
            least = self.config.min_grade
            raise QontextError(
                f"no query has a positive (a grade of {least} or more)", place=self.config.qrels
            )
        return slices(len(self.positives), PART, lambda number: f"groups-{number:05d}.parquet")

    def open(self) -> None:
        from qontext.retrieve.inputs import select_queries

        queries = select_queries(self.config.data, None, self.config.queries)
        self.sources = _sources(self.config, queries, self.qrels)

    def make(self, part: Part, content: None) -> dict[str, int]:
        import pyarrow as pa

        from qontext.data import records
        from qontext.finetune.negatives.groups import GROUPS

        report, groups = Report(), []
        positives = dict(islice(self.positives.items(), part.first, part.last))
        places = self.sources.places(positives.values())
        for query, own in positives.items():
            groups.append(_group(query, own, places, self.sources, self.config, report))
            self.advance(1)
        self.sources.check(groups, self.config.run)
        self.work.write_json(_report_name(part), asdict(report))
        with self.work.write(part.name) as path:
            records.write_table(
                path, pa.Table.from_pylist([group._asdict() for group in groups], schema=GROUPS)
            )
        return {}

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        reports = [read_json(self.work.path / _report_name(part), Report) for part in outcome.parts]
        report = Report.total([Report(**values) for values in reports])
        if report.lacking == report.queries:
            for name in self.work.names():  # a corrected command starts afresh
                self.work.remove(name)
            raise QontextError(
                "no query got a negative: the run and the judgments have no query in common, or filters are too strict",
                place=self.config.run,
            )
        if report.lacking:
            log.warn(f"{report.lacking:,} of {report.queries:,} queries lack hard negatives.")
        return report.summary(len(self.judged) - len(self.positives))


def _report_name(part: Part) -> str:
    return f"{LOGS}groups-{part.number:05d}.json"


def _judgments(config: MineConfig) -> Qrels:
    from qontext.data.runs import read_run
    from qontext.retrieve.inputs import judgments

    if config.positives_share is None:
        return judgments(config.qrels, config.split)
    return confident(read_run(config.qrels), config.positives_share)


def _sources(config: MineConfig, queries: Mapping[str, str], qrels: Qrels) -> Sources:
    """Read all inputs, and check that they belong together."""
    from qontext.data.collection import check_qrels
    from qontext.data.runs import read_run
    from qontext.finetune.negatives.groups import read_candidates
    from qontext.finetune.negatives.sources import Corpus, Sources, passages_with_answers
    from qontext.retrieve.inputs import select_passages

    corpus = None
    if config.passages or config.data:
        corpus = Corpus(select_passages(config.data, config.passages), config.seed)
        named = {*chain.from_iterable(qrels.values()), *(qrels.keys() - queries.keys())}
        known = {id for id, row in zip(named, corpus.rows(list(named)).tolist()) if row >= 0}
        check_qrels(qrels, queries, known, config.qrels)
    if corpus is None and (config.random or config.in_document):
        raise QontextError("random and in-document negatives need --passages or --data")
    if corpus is None and (unknown := next((q for q in qrels if q not in queries), None)):
        raise QontextError(f"names the query {unknown!r}, which is not in the queries", place=config.qrels)
    runs = [read_candidates(path, config.depth) for path in (config.run, *config.also)]
    answering: Mapping[str, Container[str]] = {}
    if config.answers:
        passages = select_passages(config.data, config.passages)
        answering = passages_with_answers(runs, config.depth, config.answers, queries, passages)
    return Sources(queries, runs, corpus, read_run(config.scores) if config.scores else None, answering)


def _group(
    query: str,
    positives: list[str],
    places: Mapping[str, int],
    sources: Sources,
    config: MineConfig,
    report: Report,
) -> Group:
    """The query with its positives and negatives."""
    from qontext.finetune.negatives.groups import Group

    negatives: dict[str, None] = {}
    answering, corpus = sources.answering.get(query, ()), sources.drawn
    for number, one in enumerate(sources.runs):
        hard = _from_run(one, number, query, positives, answering, sources.scores, config, report)
        negatives.update(dict.fromkeys(hard))
    if corpus:
        own = {id: places[id] for id in positives}
        negatives.update(dict.fromkeys(corpus.near(query, own, config.in_document)))
        negatives.update(dict.fromkeys(corpus.anywhere(query, own, config.random)))
    if not negatives:
        report.lacking += 1
        report.such_as = [*report.such_as, query][:NAMED]
    report.queries += 1
    report.negatives += len(negatives)
    report.fewer_than_asked += len(negatives) < config.per_query
    return Group(query, sources.queries[query], positives, list(negatives))


def confident(scored: Run, share: float) -> Qrels:
    """Each query's passages that have at least this share of the softmax over its scores."""
    import numpy as np

    qrels: Qrels = {}
    for query in scored:
        passages, scores = scored.results(query)
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        qrels[query] = {passage: 1 for passage, own in zip(passages, shares.tolist()) if own >= share}
    return qrels


def _from_run(
    one: Run,
    number: int,
    query: str,
    positives: list[str],
    answering: Container[str],
    scores: Run | None,
    config: MineConfig,
    report: Report,
) -> list[str]:
    from qontext.training.randomness import generator

    if query not in one:
        report.not_in_run += 1
        return []
    passages, own = one.results(query)
    candidates = passages[config.skip : config.depth]
    hard = [passage for passage in candidates if passage not in positives]
    report.positives_removed += len(candidates) - len(hard)
    without = [passage for passage in hard if passage not in answering]
    report.with_answers += len(hard) - len(without)
    remaining = hard = without
    if config.margin is not None or config.max_score is not None:
        score_of = dict(zip(passages, own.tolist()))
        if scores is not None:
            score_of = dict(zip(*scores.results(query))) if query in scores else {}
        remaining = _filtered(hard, score_of, positives, config, report)
    if config.sample == "top" or len(remaining) <= config.per_query:
        return remaining[: config.per_query]
    numbers = generator(config.seed, f"run {number}", query).choice(
        len(remaining), config.per_query, replace=False
    )
    return [remaining[i] for i in sorted(numbers)]


def _filtered(
    hard: list[str], score_of: dict[str, float], positives: list[str], config: MineConfig, report: Report
) -> list[str]:
    import numpy as np

    limit = np.inf if config.max_score is None else config.max_score
    if config.margin is not None:
        best = max((score_of[p] for p in positives if p in score_of), default=None)
        if best is None:
            report.unscored_positive += 1
        else:
            limit = min(limit, best - config.margin)
    if limit == np.inf:  # there is a margin, but no scored positive
        return hard
    remaining = [passage for passage in hard if score_of.get(passage, np.inf) <= limit]
    report.filtered += len(hard) - len(remaining)
    return remaining


STAGE = Stage(
    "mine",
    MineConfig,
    Mine,
    """
        qontext mine bm25-train.trec data --data data --depth 200 --per-query 30 --out groups
        qontext mine dense-train.trec data/qrels/train.tsv --also bm25-train.trec --data data --skip 5 --out groups
        qontext mine msmarco-hard-negatives.jsonl.gz qrels.train.tsv --queries queries.train.tsv --out groups
        qontext mine bm25-train.trec data --data data --shard 0/4 --out groups
    """,
)
