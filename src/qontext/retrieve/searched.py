"""The system that the settings of `qontext retrieve` name: the one of a directory of `adapt`, an index with the encoder of
its vectors, passages by their words, or a search from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from qontext.data.places import find_passages
from qontext.frame import artifacts, locks
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Asks, DeviceConfig, Input, Seed
from qontext.frame.errors import QontextError
from qontext.frame.parts import PartsConfig
from qontext.retrieve.ask import outside
from qontext.retrieve.ask.questions import GroupBy, by_document
from qontext.retrieve.directory import fingerprint_of
from qontext.retrieve.index.lexical import Bm25Options
from qontext.retrieve.rankers import IndexRanker
from qontext.retrieve.searcher import Searcher
from qontext.retrieve.system import System

if TYPE_CHECKING:
    from qontext.data.runs import Run
    from qontext.retrieve.index import Index


WORDS = ".bm25"
"""The index of passages that are searched without one; hidden, since it is no part of the result."""


class RetrieveConfig(PartsConfig, Bm25Options, DeviceConfig):
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

    query_prompt: str | None = None
    """A text before each query, such as "query: ", or the name of one of the encoder's prompts. Default: the one that was
    recorded with the vectors, else as the encoder's folder says."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format for encoding queries; auto is bf16 if the hardware supports it, else fp32."""

    scoring: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the first pass of exact search; candidates from bf16 and fp16 are rescored in fp32."""

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


class Recommended:
    """The system that `adapt` recommends."""

    def __init__(self, config: RetrieveConfig) -> None:
        self.config = config
        self.searcher = Searcher(config.index or "", device=config.device, encoder=config.encoder)
        if config.bm25:
            self.searcher.system = System(words=True)
        self.tag = self.searcher.system.name

    def run(self, queries: Mapping[str, str], advance: Callable[[float], None]) -> Run:
        how: dict[str, Any] = {"group": self.config.group, "renamed": True}
        return self.searcher.run(queries, self.config.k, self.config.where, **how)


class Indexed:
    """An index, and which of its passages meet the conditions."""

    def __init__(self, config: RetrieveConfig, work: Workdir) -> None:
        self.config, self.ranker = config, _ranker(config, work)
        self.tag = self.ranker.index.tag
        self.rows = _rows(config, self.ranker.index)

    def run(self, queries: Mapping[str, str], advance: Callable[[float], None]) -> Run:
        """The best passages; `advance` is called with the share of the work that is done."""
        index, count = self.ranker.index, self.ranker.index.count
        index.advance = lambda passages: advance(passages / count)
        rank = partial(self.ranker.rank, among=lambda index: self.rows)
        if self.config.group == "passage":
            return rank(queries, self.config.k)
        find = partial(find_passages, _passages(self.config))
        return by_document(rank, queries, self.config.k, find, renamed=True)


class Asked:
    """A search from elsewhere."""

    tag = "outside"

    def __init__(self, config: RetrieveConfig) -> None:
        from qontext.retrieve.inputs import select_passages

        self.config, self.passages = config, select_passages(config.data, config.passages)
        self.unmatched = 0

    def run(self, queries: Mapping[str, str], advance: Callable[[float], None]) -> Run:
        run, self.unmatched = outside.ask(self.config.system or "", queries, self.passages, self.config.k)
        return run


def _ranker(config: RetrieveConfig, work: Workdir) -> IndexRanker:
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
    if config.bm25 and index.reads != "texts":
        raise QontextError("is not a BM25 index", place=config.index, remedy="Remove --bm25.")
    return IndexRanker(index, None if entry is None else _retriever(config, index, entry, work))


def _retriever(config: RetrieveConfig, index: Index, entry: Any, work: Workdir) -> Any:
    """The encoder of the queries."""
    from qontext.models.precision import own_device, resolve_device, settle_precision
    from qontext.models.retriever import Retriever
    from qontext.retrieve.index.load import encoder_of, fit
    from qontext.retrieve.stored import pooling_of, prompts_of

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
    artifact = artifacts.open_artifact(config.index or "")
    prompts = prompts_of(artifact)
    if config.query_prompt is not None:
        prompts["query"] = config.query_prompt
    # The other half of a pair has its own.
    pooling = None if untied and config.encoder is not None else pooling_of(artifact)
    retriever = Retriever(name, **settings, packed=True, prompts=prompts, pooling=pooling)
    fit(retriever, index, name, untied=untied)
    return retriever


def _words(config: RetrieveConfig, work: Workdir) -> Index:
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


def _rows(config: RetrieveConfig, index: Index) -> Any:
    """The passages of the index that meet the conditions; None without conditions."""
    from qontext.retrieve.where import mask, parse

    if not config.where:
        return None
    if config.passages is None and (rows := index.where(parse(config.where))) is not None:
        return rows
    return mask(config.where, index.ids, _passages(config))


def _passages(config: RetrieveConfig) -> str:
    """The passages that are searched."""
    from qontext.retrieve.inputs import select_passages
    from qontext.retrieve.where import passages_of

    passages = config.passages or config.data
    if config.index is not None and config.passages is None:
        passages = passages_of(artifacts.open_artifact(config.index))
    return select_passages(None, passages)
