"""`qontext mine`: runs and judgments → training groups with hard negatives.

Every judged training query becomes a group; a part is a slice of them. From each run its negatives are the
results from rank `skip` to rank `depth` without the query's positives, optionally filtered by score, of which
`per_query` are drawn with a seed of the query, independently of other queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from qontext.frame import log
from qontext.frame.artifacts import LOGS
from qontext.frame.config import Input, Seed
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig, slices
from qontext.frame.stages import Stage

if TYPE_CHECKING:
    from qontext.data.collection import Qrels
    from qontext.finetune.negatives.selection import Selection
    from qontext.finetune.negatives.sources import NegativeSources

PART = 65_536
"""Queries of a part."""


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
    """Number of top results of a run to take negatives from."""

    skip: int = Field(0, ge=0)
    """Number of top results to skip, since they may be unlabeled positives."""

    per_query: int = Field(30, ge=0)
    """Negatives per query from each run."""

    sample: Literal["random", "top"] = "random"
    """Take candidates at random, or the first ones."""

    margin: float | None = None
    """Keep a negative only if its score is lower than that of the query's best-scored positive by at least
    this margin."""

    scores: Annotated[str | None, Input()] = None
    """Run with the scores for --margin, such as a cross-encoder's from `rerank`. Default: each run's own scores. Negatives
    without a score in it are dropped."""

    answers: Annotated[str | None, Input()] = None
    """Questions with answers, such as DPR's biencoder-nq-train.json: passages that contain an answer are no negatives.
    Needs --passages."""

    random: int = Field(0, ge=0)
    """Negatives per query drawn from all passages."""

    in_document: int = Field(0, ge=0)
    """Negatives per query drawn from the positives' documents."""

    positives_share: float | None = Field(None, gt=0, le=1)
    """Label queries without judgments by a cross-encoder (RocketQA): a passage is a positive if it has at least this share
    of the softmax over the query's scores, such as 0.9. QRELS is then a run from `rerank`."""

    limit: int | None = Field(None, ge=1)
    """Maximum number of queries, drawn with the seed. Default: all."""

    seed: Seed = 42
    """Random seed, combined with the query's id."""

    def selection(self) -> Selection:
        """The rules by which negatives are selected."""
        from qontext.finetune.negatives.selection import Selection

        return Selection(**{name: getattr(self, name) for name in Selection.__dataclass_fields__})


class Mine(Parts[MineConfig]):
    unit = "queries"

    @cached_property
    def qrels(self) -> Qrels:
        from qontext.data.runs import read_run
        from qontext.finetune.negatives.selection import confident
        from qontext.retrieve.inputs import judgments

        config = self.config
        if config.positives_share is None:
            return judgments(config.qrels, config.split)
        return confident(read_run(config.qrels), config.positives_share)

    @cached_property
    def judged(self) -> Qrels:
        """The judgments; with a limit, those of some queries."""
        from qontext.training.randomness import sample_names

        limit, qrels = self.config.limit, self.qrels
        if limit is None or limit >= len(qrels):
            return qrels
        return {name: qrels[name] for name in sample_names(qrels, limit, self.config.seed)}

    @cached_property
    def positives(self) -> dict[str, list[str]]:
        from qontext.finetune.negatives.selection import positives_of

        return positives_of(self.judged)

    def plan(self) -> list[Part]:
        from qontext.finetune.negatives.selection import NO_POSITIVE

        if not self.positives:
            raise QontextError(NO_POSITIVE, place=self.config.qrels)
        return slices(len(self.positives), PART, lambda number: f"groups-{number:05d}.parquet")

    def open(self) -> None:
        from qontext.retrieve.inputs import select_queries

        queries = select_queries(self.config.data, None, self.config.queries)
        self.sources = _sources(self.config, queries, self.qrels, self.positives)

    def make(self, part: Part, content: None) -> dict[str, int]:
        from qontext.data import records
        from qontext.finetune.negatives.groups import Groups
        from qontext.finetune.negatives.selection import group_of

        report, groups, how = Counter[str](), Groups(), self.config.selection()
        positives = dict(islice(self.positives.items(), part.first, part.last))
        places = self.sources.places(positives.values())
        for query, own in positives.items():
            groups.append(group_of(query, own, places, self.sources, how, report))
            self.advance(1)
        self.sources.check(groups, self.config.run)
        self.work.write_json(_report_name(part), report)
        with self.work.write(part.name) as path:
            records.write_table(path, groups.table())
        return {}

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        from qontext.finetune.negatives.selection import NO_NEGATIVE

        total: Counter[str] = Counter()
        for part in outcome.parts:
            total.update(read_json(self.work.path / _report_name(part), dict[str, int]))
        lacking = total["queries_without_negatives"]
        if lacking == total["queries"]:
            for name in self.work.names():  # a corrected command starts afresh
                self.work.remove(name)
            raise QontextError(NO_NEGATIVE, place=self.config.run)
        if lacking:
            log.warn(f"{lacking:,} of {total['queries']:,} queries lack hard negatives.")
        return {**total, "queries_without_positives": len(self.judged) - len(self.positives)}


def _report_name(part: Part) -> str:
    return f"{LOGS}groups-{part.number:05d}.json"


def _sources(
    config: MineConfig, queries: Mapping[str, str], qrels: Qrels, positives: Mapping[str, list[str]]
) -> NegativeSources:
    """Read all inputs, and check that they belong together."""
    from qontext.data.collection import check_qrels
    from qontext.data.load import ids_and_documents
    from qontext.data.runs import read_run
    from qontext.finetune.negatives.groups import read_candidates
    from qontext.finetune.negatives.sources import Corpus, NegativeSources, passages_with_answers
    from qontext.retrieve.inputs import select_passages

    corpus = None
    if config.passages or config.data:
        corpus = Corpus(ids_and_documents(select_passages(config.data, config.passages)), config.seed)
        named = {*chain.from_iterable(qrels.values()), *(qrels.keys() - queries.keys())}
        known = {id for id, row in zip(named, corpus.rows(list(named)).tolist()) if row >= 0}
        check_qrels(qrels, queries, known, config.qrels)
    if corpus is None and (config.random or config.in_document):
        raise QontextError("random and in-document negatives need --passages or --data")
    if corpus is None and (unknown := next((q for q in qrels if q not in queries), None)):
        raise QontextError(f"names the query {unknown!r}, which is not in the queries", place=config.qrels)
    runs = [read_candidates(path, config.depth) for path in (config.run, *config.also)]
    scores = read_run(config.scores) if config.scores else None
    sources = NegativeSources(queries, runs, corpus, scores, {})
    if not config.answers:
        return sources
    passages = select_passages(config.data, config.passages)
    assert corpus is not None, "select_passages refuses answers without passages"
    places = sources.places(positives.values())
    drawn = {
        query: corpus.draw(query, {id: places[id] for id in own}, config.in_document, config.random)
        for query, own in positives.items()
    }
    answering = passages_with_answers(runs, config.depth, config.answers, queries, passages, drawn)
    return replace(sources, answering=answering)


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
