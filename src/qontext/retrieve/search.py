"""`qontext retrieve`: queries → a TREC run, from vectors, an index, BM25, a directory of `adapt`, or another search.

Queries are searched in blocks, one part each: a killed run resumes after its last block, and several processes or
machines can share the blocks. Vectors and indexes on disk are mapped by all of them.
"""

from __future__ import annotations

import shutil
from collections import Counter
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from qontext.frame import locks, log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Asks, ComputeConfig, Input, Seed
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig, slices
from qontext.frame.stages import Stage
from qontext.retrieve.ask import outside
from qontext.retrieve.ask.questions import DEPTHS, GroupBy, by_document
from qontext.retrieve.directory import fingerprint_of, is_adapted
from qontext.retrieve.index import How
from qontext.retrieve.index.lexical import Bm25Options, LexicalIndex
from qontext.retrieve.inputs import select_passages, select_queries
from qontext.retrieve.open import OneIndex, Searchable, open_path
from qontext.retrieve.query_encoder import Opening
from qontext.retrieve.system import System

if TYPE_CHECKING:
    from qontext.data.runs import Run

RUN, PARTIAL = "run.trec", "partial"
WORDS = ".bm25"
"""The index of passages that are searched without one; hidden, since it is no part of the result."""
BLOCK, PARTS, RESULTS = 1_024, 8, 1 << 24
"""Queries that exact search multiplies together; for many queries, parts to aim at; and results of the largest part."""


class RetrieveConfig(PartsConfig, Bm25Options, ComputeConfig):
    index: Annotated[str | None, Input(positional=True, fingerprint=fingerprint_of)] = None
    """The index to search: vectors (from `encode`, exact search), an index (from `index`), or a directory of `adapt`.
    Optional with --bm25: the passages are then indexed first."""

    where: tuple[str, ...] = ()
    """Search only passages whose metadata meet this condition, such as folder=guide, 'date>=2024' or
    'lang=de|fr'. May be repeated; all conditions must hold."""

    group: GroupBy = "passage"
    """Group hits by document: the run names the documents, with the scores of their best passages."""

    data: Annotated[str | None, Input()] = None
    """A BEIR folder with the queries and, with --bm25, the passages."""

    split: str | None = None
    """Split of --data whose judged queries are used. Default: all queries."""

    queries: Annotated[str | None, Input()] = None
    """Queries, instead of --data: BEIR JSON Lines, id<tab>text, or generated queries."""

    limit: int | None = Field(None, ge=1)
    """Maximum number of queries, drawn with the seed; `mine --limit` draws the same ones."""

    seed: Seed = 42
    """Random seed for --limit."""

    passages: Annotated[str | None, Input()] = None
    """Passages for --bm25, instead of --data: output of `split`, Parquet, a BEIR folder or corpus file. With
    --where: passages with the metadata, if the index's own passages no longer exist."""

    encoder: Annotated[str | None, Input()] = None
    """Encoder for the queries. Default: the one that encoded the passages. For a directory of `adapt`: an unchanged copy of
    its encoder, if that is no longer where it was."""

    untied: bool = False
    """Accept an --encoder other than that of the passages: the query half of an untied pair."""

    bm25: bool = False
    """Search with BM25 instead of vectors; in a directory of `adapt`, instead of the recommended system."""

    system: Annotated[str | None, Asks(outside.demands)] = None
    """Ask another search instead: a command that reads questions as JSON lines, {"id": …, "text": …}, and writes a TREC
    run of ids of passages or documents."""

    k: int = Field(1_000, ge=1)
    """Passages per query."""

    max_length: int | None = Field(None, ge=3, le=100_000)
    """Maximum length of a query in tokens; longer queries are truncated. Default: the encoder's limit."""

    scoring: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the first pass of exact search; candidates from bf16 and fp16 are rescored in fp32."""

    @property
    def is_divisible(self) -> bool:
        """An outside system is asked from this machine."""
        return self.system is None


class Search(Parts[RetrieveConfig]):
    """Slices of the queries, each a run of its own; the result is these runs one after the other."""

    unit = "queries"

    @cached_property
    def queries(self) -> list[tuple[str, str]]:
        from qontext.training.randomness import sample_names

        config = self.config
        queries = select_queries(config.data, config.split, config.queries)
        if config.limit is not None:
            queries = {name: queries[name] for name in sample_names(queries, config.limit, config.seed)}
        return list(queries.items())

    @property
    def uses_gpu(self) -> bool:
        return super().uses_gpu and not self.config.bm25 and self.config.system is None

    def plan(self) -> list[Part]:
        from qontext.retrieve.index.load import is_for_one_process

        count = len(self.queries)
        index = self.config.index
        is_whole = self.config.system is not None or (
            index is not None and not is_adapted(index) and is_for_one_process(index)
        )
        deep = self.config.k if self.config.group == "passage" else max(self.config.k, DEPTHS[2])
        size = max(count, 1) if is_whole else size_for(count, deep)
        return slices(count, size, lambda number: f"{PARTIAL}/{number:05d}.trec")

    def open(self) -> None:
        if self.config.system is None:
            self.collection = _open(self.config, self.work)
            # Wrong conditions are refused before anything is searched.
            self.among = self.collection.among(self.config.where)

    def make(self, part: Part, content: None) -> dict[str, int]:
        from qontext.data.runs import write_run

        queries = dict(self.queries[part.first : part.last])
        if self.config.system is not None:
            passages, tag = select_passages(self.config.data, self.config.passages), "outside"
            run = outside.ask(self.config.system, queries, passages, self.config.k)
        else:
            run, tag = self._search(queries), "bm25" if self.config.bm25 else self.collection.tag
        self.work.write_json(_counts_name(part), {"queries": len(run), "results": run.size})
        with self.work.write(part.name) as path:
            write_run(run, path, tag=tag)
        self.advance(len(queries))
        return {"queries": len(queries)}

    def _search(self, queries: dict[str, str]) -> Run:
        """The best passages of some queries."""
        config, collection = self.config, self.collection
        system = System(words=True) if config.bm25 else collection.system
        rank = partial(collection.ranker(system).rank, among=self.among)
        if config.group == "passage":
            return rank(queries, config.k)
        return by_document(rank, queries, config.k, collection.find, renamed=True)

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        counts = Counter[str]()
        with self.work.write(RUN) as path, path.open("wb") as run:
            for part in outcome.parts:
                counts.update(read_json(self.work.path / _counts_name(part), dict[str, int]))
                with (self.work.path / part.name).open("rb") as file:
                    shutil.copyfileobj(file, run)
        self.work.remove(PARTIAL)
        self.work.remove(WORDS)
        if counts["queries"] < len(self.queries):
            log.note(f"{len(self.queries) - counts['queries']:,} queries have no result.")
        return {
            "queries": len(self.queries),
            "queries_with_results": counts["queries"],
            "results": counts["results"],
            "seconds": round(outcome.seconds, 3),
            "queries_per_second": round(outcome.counts["queries"] / outcome.seconds, 1),
        }


def size_for(queries: int, k: int) -> int:
    """The queries of a part: a whole number of the blocks that exact search multiplies. Each part reads all vectors, so
    there are few parts, as far as their results fit into memory."""
    largest = max(1, RESULTS // (k * BLOCK))
    return BLOCK * min(largest, max(1, -(-queries // (BLOCK * PARTS))))


def _counts_name(part: Part) -> str:
    return f"{PARTIAL}/{part.number:05d}.json"


def _open(config: RetrieveConfig, work: Workdir) -> Searchable:
    """The collection that is searched."""
    if config.index is None:
        if not config.bm25:
            raise QontextError(
                "nothing to search is specified", remedy="Name vectors or an index, or pass --bm25."
            )
        passages = select_passages(config.data, config.passages)
        return OneIndex(str(work.path), Opening(), passages, _words(config, work, passages))
    from qontext.models.precision import own_device, resolve_device, settle_precision

    device = own_device(config.device)
    opening = Opening(
        device,
        precision=lambda: settle_precision(work, config.precision, resolve_device(device)),
        encoder=config.encoder,
        untied=config.untied,
        max_length=config.max_length,
        is_resident=True,
        how=How(device, config.scoring),
    )
    return open_path(config.index, opening, config.passages)


def _words(config: RetrieveConfig, work: Workdir, passages: str) -> LexicalIndex:
    """BM25 over the passages: indexed by the first process that needs it, mapped by all."""
    from qontext.data.collection import read_passages
    from qontext.retrieve.bm25 import Bm25

    with locks.lock(work.path, WORDS, wait=True):
        if not work.has(WORDS):
            with work.write_folder(WORDS) as folder:
                Bm25.write(folder, read_passages(passages), **config.bm25_settings())
    return LexicalIndex(Bm25.load(work.path / WORDS))


STAGE = Stage(
    "retrieve",
    RetrieveConfig,
    Search,
    """
        qontext retrieve --bm25 --data data --split test --out bm25.trec
        qontext retrieve vectors --data data --split test --out dense.trec
        qontext retrieve index --queries data/queries.jsonl --k 100 --out run.trec
        qontext retrieve index --queries data/queries.jsonl --where lang=de --out german.trec
        qontext retrieve runs/mine --queries data/queries.jsonl --out run.trec
        qontext retrieve vectors --data data --split test --on ray --out dense
        qontext retrieve --system "python3 my_search.py" --data data --split test --out mine
    """,
    file=RUN,
    format=3,
)
