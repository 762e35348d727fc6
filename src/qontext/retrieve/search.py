"""`qontext search`: queries → a TREC run, from vectors, an index or BM25.

Queries are searched in blocks, one part each: a killed run resumes after its last block, and several processes or
machines can share the blocks. Vectors and indexes on disk are mapped by all of them.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from qontext.frame import artifacts, locks, log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Asks, DeviceConfig, Input, Seed, without_empty
from qontext.frame.damage import read_json
from qontext.frame.errors import QontextError
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig, slices
from qontext.frame.stages import Report, Stage
from qontext.retrieve import answers, outside
from qontext.retrieve.adapted import fingerprint_of, is_adapted
from qontext.retrieve.answers import PROMPT
from qontext.retrieve.index.lexical import Bm25Options
from qontext.retrieve.rankers import IndexRanker
from qontext.retrieve.searcher import Answer, Answers, Searcher

if TYPE_CHECKING:
    from qontext.data.runs import Run
    from qontext.retrieve.index import Index
    from qontext.retrieve.matching import Asked


class SearchConfig(PartsConfig, Bm25Options, DeviceConfig):
    index: Annotated[str | None, Input(positional=True, fingerprint=fingerprint_of)] = None
    """The index to search: vectors (from `encode`, exact search), an index (from `index`), or a directory of
    `adapt`. Optional with --bm25: the passages are then indexed first."""

    question: Annotated[str | None, Input(positional=True, by_content=False)] = None
    """A question to a directory of `adapt`: prints the best passages; no --out is needed. Without a question
    and queries, questions are read from a prompt, or line by line from a pipe."""

    where: tuple[str, ...] = ()
    """Search only passages whose metadata meet this condition, such as folder=guide, 'date>=2024' or
    'lang=de|fr'. May be repeated; all conditions must hold."""

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
    """Search with BM25 instead of vectors."""

    system: Annotated[str | None, Asks(outside.demands)] = None
    """Ask another search instead: 'command {question}', the URL of a search, or mcp: and the command or the URL of an MCP
    server. Its results (ids, paths or texts) are matched to the passages."""

    k: int = Field(1_000, ge=1)
    """Passages per query."""

    max_length: int | None = Field(None, ge=3, le=100_000)
    """Maximum length of a query in tokens; longer queries are truncated. Default: the encoder's limit."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format for encoding queries; auto is bf16 if the hardware supports it, else fp32."""

    scoring: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the first pass of exact search; candidates from bf16 and fp16 are rescored in fp32."""

    def identity(self) -> dict[str, Any]:
        """Without a system where there is none."""
        return without_empty(super().identity(), "system")

    @property
    def is_divisible(self) -> bool:
        """An outside system is asked from this machine."""
        return self.system is None

    @model_validator(mode="after")
    def _one_system(self) -> Self:
        if self.system is not None:
            outside.check(self.system)
            if self.index or self.bm25 or self.where:
                raise QontextError(
                    "--system is asked itself", remedy="Leave out the index, --bm25 and --where."
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _prompt(cls, values: Any) -> Any:
        """Without a question and queries, questions are read from standard input."""
        if not isinstance(values, dict) or any(
            values.get(n) is not None for n in ("question", "queries", "data")
        ):
            return values
        index = values.get("index")
        return {**values, "question": PROMPT} if index and is_adapted(index) else values


RUN, PARTIAL = "run.trec", "partial"
ASKED = 16
"""Questions to an outside system in a part."""
WORDS = ".bm25"
"""The index of passages that are searched without one; hidden, since it is no part of the result."""
BLOCK, PARTS, RESULTS = 1_024, 8, 1 << 24
"""Queries that exact search multiplies together; for many queries, parts to aim at; and results of the largest part."""


class Search(Parts[SearchConfig]):
    """Slices of the queries, each a run of its own; the result is these runs one after the other."""

    unit = "queries"
    asked: Asked | None = None

    @cached_property
    def queries(self) -> list[tuple[str, str]]:
        return list(_queries(self.config).items())

    @property
    def uses_gpu(self) -> bool:
        return super().uses_gpu and not self.config.bm25 and self.config.system is None

    def plan(self) -> list[Part]:
        count = len(self.queries)
        size = max(count, 1) if self._is_for_one_process() else size_for(count, self.config.k)
        size = size if self.config.system is None else ASKED
        return slices(count, size, lambda number: f"{PARTIAL}/{number:05d}.trec")

    def open(self) -> None:
        self.searched: Recommended | Indexed | Asked
        if self.config.system is not None:
            self.searched = self.asked = _asked(self.config)
            return
        is_whole = self.config.index is not None and is_adapted(self.config.index)
        self.searched = Recommended(self.config) if is_whole else Indexed(self.config, self.work)

    def close(self) -> None:
        if self.asked is not None:
            self.asked.system.close()

    def make(self, part: Part, content: None) -> dict[str, int]:
        from qontext.data.runs import write_run

        queries = dict(self.queries[part.first : part.last])
        done = 0.0

        def advance(share: float) -> None:
            nonlocal done
            done += share * len(queries)
            self.advance(share * len(queries))

        hits = self.searched.run(queries, advance)
        counts = {"queries": len(hits), "results": hits.size}
        if self.asked is not None:
            counts["unmatched"] = self.asked.take_unmatched()
            if not hits.size and not part.first:
                self.asked.refuse_nothing()
        self.work.write_json(_counts_name(part), counts)
        with self.work.write(part.name) as path:
            write_run(hits, path, tag=self.searched.tag)
        self.advance(len(queries) - done)
        return {"queries": len(queries)}

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
            **({"unmatched_results": counts["unmatched"]} if self.config.system is not None else {}),
            "seconds": round(outcome.seconds, 3),
            "queries_per_second": round(outcome.counts["queries"] / outcome.seconds, 1),
        }

    def _is_for_one_process(self) -> bool:
        """True if two processes cannot open the index at a time."""
        from qontext.retrieve.index.load import is_for_one_process

        index = self.config.index
        return index is not None and not is_adapted(index) and is_for_one_process(index)


class Recommended:
    """The system that `adapt` recommends."""

    def __init__(self, config: SearchConfig) -> None:
        self.config, self.searcher = config, open_searcher(config)
        self.tag = self.searcher.system.name

    def run(self, queries: Mapping[str, str], advance: Callable[[float], None]) -> Run:
        return self.searcher.run(queries, self.config.k, self.config.where)


class Indexed:
    """An index, and which of its passages meet the conditions."""

    def __init__(self, config: SearchConfig, work: Workdir) -> None:
        self.config, self.ranker = config, _ranker(config, work)
        self.tag = self.ranker.index.tag
        self.rows = _rows(config, self.ranker.index)

    def run(self, queries: Mapping[str, str], advance: Callable[[float], None]) -> Run:
        """The best passages; `advance` is called with the share of the work that is done."""
        index, count = self.ranker.index, self.ranker.index.count
        index.advance = lambda passages: advance(passages / count)
        return self.ranker.rank(queries, self.config.k, among=lambda index: self.rows)


def _asked(config: SearchConfig) -> Asked:
    from qontext.retrieve.inputs import select_passages
    from qontext.retrieve.matching import Asked

    passages = select_passages(config.data, config.passages)
    return Asked(outside.open_outside(config.system or ""), passages, config.k)


def open_searcher(config: SearchConfig) -> Searcher:
    """The searcher of a directory of `adapt`."""
    return Searcher(config.index or "", device=config.device, encoder=config.encoder)


def _ranker(config: SearchConfig, work: Workdir) -> IndexRanker:
    """The index to search, with the encoder of its vectors."""
    from qontext.retrieve.index import How
    from qontext.retrieve.index.load import open_index

    if config.index is None:
        if not config.bm25:
            raise QontextError(
                "nothing to search is specified", remedy="Name vectors or an index, or pass --bm25."
            )
        return IndexRanker(_words(config, work))
    index, entry = open_index(config.index, How(config.device, config.scoring))
    if config.scoring != "fp32":
        _check_coarse(index, config)
    if config.bm25 and index.reads != "texts":
        raise QontextError("is not a BM25 index", place=config.index, remedy="Remove --bm25.")
    return IndexRanker(index, None if entry is None else _retriever(config, index, entry, work))


def _check_coarse(index: Index, config: SearchConfig) -> None:
    """Refuse a coarse first pass where there is none."""
    from qontext.retrieve.index.exact import ExactIndex

    if not isinstance(index, ExactIndex):
        raise QontextError(
            f"scoring {config.scoring} is only for exact search of one vector for each passage",
            place=config.index,
            remedy="Remove --scoring.",
        )


def _retriever(config: SearchConfig, index: Index, entry: Any, work: Workdir) -> Any:
    """The encoder of the queries."""
    from qontext.models.precision import own_device, resolve_device, settle_precision
    from qontext.models.retriever import Retriever
    from qontext.retrieve.index.load import encoder_of, fit

    device, untied = own_device(config.device), config.untied
    name = encoder_of(
        entry,
        config.index or "",
        config.encoder,
        untied=untied,
        remedy="Name it with --encoder, or encode the passages again.",
    )
    precision = settle_precision(work, config.precision, resolve_device(device))
    settings: dict[str, Any] = {"device": device, "precision": precision, "max_length": config.max_length}
    retriever = Retriever(name, **settings, packed=True)
    fit(retriever, index, name, untied=untied)
    return retriever


def _words(config: SearchConfig, work: Workdir) -> Index:
    """BM25 over the passages: indexed by the first process that needs it, mapped by all."""
    from qontext.data.collection import read_passages
    from qontext.retrieve.bm25 import Bm25
    from qontext.retrieve.index.lexical import LexicalIndex
    from qontext.retrieve.inputs import select_passages

    passages = read_passages(select_passages(config.data, config.passages))
    with locks.lock(work.path, WORDS, wait=True):
        if not work.has(WORDS):
            with work.write_folder(WORDS) as folder:
                Bm25.write(folder, passages, **config.bm25_settings())
    return LexicalIndex(Bm25.load(work.path / WORDS))


def _rows(config: SearchConfig, index: Index) -> Any:
    """The passages of the index that meet the conditions; None without conditions."""
    from qontext.retrieve.inputs import select_passages
    from qontext.retrieve.where import mask, parse, passages_of

    if not config.where:
        return None
    if config.passages is None and (rows := index.where(parse(config.where))) is not None:
        return rows
    passages = config.passages or config.data
    if config.index is not None and config.passages is None:
        passages = passages_of(artifacts.open_artifact(config.index))
    return mask(config.where, index.ids, select_passages(None, passages))


def size_for(queries: int, k: int) -> int:
    """The queries of a part: a whole number of the blocks that exact search multiplies. Each part reads all vectors, so
    there are few parts, as far as their results fit into memory."""
    largest = max(1, RESULTS // (k * BLOCK))
    return BLOCK * min(largest, max(1, -(-queries // (BLOCK * PARTS))))


def _counts_name(part: Part) -> str:
    return f"{PARTIAL}/{part.number:05d}.json"


def ask(config: SearchConfig) -> dict[str, Any]:
    """Print the best passages for one question, or for those from a prompt."""
    if config.question is None:
        raise QontextError("search needs --out, the output directory")
    searcher = open_searcher(config)
    k = config.k if "k" in config.model_fields_set else answers.SHOWN
    if config.question != PROMPT:
        return {"answers": answers.answer(searcher, config.question, k, config.where)}
    return answers.converse(searcher, k, config.where)


def _queries(config: SearchConfig) -> dict[str, str]:
    from qontext.retrieve.inputs import select_queries
    from qontext.training.randomness import sample_names

    if config.question not in (None, PROMPT):
        raise QontextError(
            "a question is answered without --out",
            remedy="Leave out --out, or pass the queries with --data FOLDER or --queries FILE.",
        )
    queries = select_queries(config.data, config.split, config.queries)
    if config.limit is not None:
        queries = {name: queries[name] for name in sample_names(queries, config.limit, config.seed)}
    return queries


def _returned(summary: Mapping[str, Any]) -> Answers:
    """The answers to a question as objects."""
    return Answers(Answer.from_json(answer) for answer in summary.get("answers", ()))


EXAMPLES = """
        qontext search --bm25 --data data --split test --out bm25.trec
        qontext search vectors --data data --split test --out dense.trec
        qontext search index --queries data/queries.jsonl --k 100 --out run.trec
        qontext search index --queries data/queries.jsonl --where lang=de --out german.trec
        qontext search runs/mine "how do I reset my password?"
        qontext search runs/mine --queries data/queries.jsonl --out run.trec
        qontext search vectors --data data --split test --on ray --out dense
        qontext search --system "grep -ril {question} docs" --data data --split test --out mine
"""

STAGE = Stage(
    "search",
    SearchConfig,
    Search,
    EXAMPLES,
    without_out=Report("search", SearchConfig, ask, EXAMPLES, returned=_returned),
    file=RUN,
    format=3,
)
