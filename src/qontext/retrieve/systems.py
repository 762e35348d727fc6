"""What answers the queries of `qontext search`: an index, with the encoder of its vectors, or what `adapt` recommends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from qontext.frame import artifacts, locks
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.retrieve.index import How, Index, check_found
from qontext.retrieve.index.lexical import LexicalIndex
from qontext.retrieve.search_config import SearchConfig
from qontext.retrieve.searcher import Searcher, is_adapted

if TYPE_CHECKING:
    from qontext.data.runs import Run

WORDS = ".bm25"
"""The index of passages that are searched without one; hidden, since it is no part of the result."""


class System(Protocol):
    """Something that answers queries (id → text)."""

    tag: str
    """Its name in runs."""

    def run(self, queries: dict[str, str], advance: Callable[[float], None]) -> Run:
        """Their best passages. `advance` may be called with the share of the work that is done."""
        ...


def open_system(config: SearchConfig, work: Workdir) -> System:
    """The system that the settings name."""
    if config.index is not None and is_adapted(config.index):
        return Adapted(config)
    return Indexed(config, work)


class Adapted:
    """The system that `adapt` recommends."""

    def __init__(self, config: SearchConfig) -> None:
        self.config = config
        self.searcher = Searcher(config.index or "", device=config.device, encoder=config.encoder)
        self.tag = self.searcher.system.name

    def run(self, queries: dict[str, str], advance: Callable[[float], None]) -> Run:
        return self.searcher.run(queries, self.config.k, self.config.where)


class Indexed:
    """An index, with the encoder of its vectors and the passages that meet the conditions."""

    def __init__(self, config: SearchConfig, work: Workdir) -> None:
        self.config = config
        self.index, entry = _open(config, work)
        self.tag = self.index.tag
        self.retriever = None if self.index.reads == "texts" else _retriever(config, self.index, entry, work)
        self.rows = _rows(config, self.index)

    def run(self, queries: dict[str, str], advance: Callable[[float], None]) -> Run:
        texts: Any = list(queries.values())
        if self.retriever is not None:
            texts = self.retriever.encode(texts, "query")
        index, k, count = self.index, self.config.k, self.index.count
        index.advance = lambda passages: advance(passages / count)
        numbers, scores = check_found(index.search(texts, k, self.rows), index, len(queries), k)
        return _run_of(list(queries), numbers, scores, index)


def _rows(config: SearchConfig, index: Any) -> Any:
    """Which passages of the index meet the conditions; None without conditions."""
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


def _open(config: SearchConfig, work: Workdir) -> tuple[Index, dict[str, str] | None]:
    """The index to search, and the encoder of its vectors."""
    from qontext.retrieve.index.load import open_index

    if config.index is not None:
        index, encoder = open_index(config.index, How(config.device, config.scoring))
        if config.scoring != "fp32":
            _check_coarse(index, config)
        if config.bm25 and index.reads != "texts":
            raise QontextError("is not a BM25 index", place=config.index, remedy="Remove --bm25.")
        return index, encoder
    if not config.bm25:
        raise QontextError(
            "nothing to search is specified", remedy="Name vectors or an index, or pass --bm25."
        )
    return _words(config, work), None


def _check_coarse(index: Index, config: SearchConfig) -> None:
    """Refuse a coarse first pass where there is none."""
    from qontext.retrieve.index.exact import ExactIndex

    if not isinstance(index, ExactIndex):
        raise QontextError(
            f"scoring {config.scoring} is only for exact search of one vector for each passage",
            place=config.index,
            remedy="Remove --scoring.",
        )


def _words(config: SearchConfig, work: Workdir) -> Index:
    """BM25 over the passages: indexed by the first process that needs it, mapped by all."""
    from qontext.data.collection import read_passages
    from qontext.retrieve.bm25 import Bm25
    from qontext.retrieve.inputs import select_passages

    passages = read_passages(select_passages(config.data, config.passages))
    with locks.lock(work.path, WORDS, wait=True):
        if not work.has(WORDS):
            with work.write_folder(WORDS) as folder:
                Bm25.write(folder, passages, **config.bm25_settings())
    return LexicalIndex(Bm25.load(work.path / WORDS))


def _retriever(config: SearchConfig, index: Index, encoder: dict[str, str] | None, work: Workdir) -> Any:
    """The encoder of the queries."""
    from qontext.models.precision import own_device, resolve_device, settle_precision
    from qontext.models.retriever import Retriever
    from qontext.retrieve.index.load import reads

    assert encoder is not None
    device = own_device(config.device)
    name = _query_encoder(config, encoder)
    precision = settle_precision(work, config.precision, resolve_device(device))
    settings: dict[str, Any] = {"device": device, "precision": precision, "max_length": config.max_length}
    retriever = Retriever(name, **settings, packed=True)
    searched = index.tag if index.reads == "packed" else "vector"
    if not reads(index, retriever.layout.representation):
        raise QontextError(
            f"is an encoder of the representation {retriever.layout.representation!r}, the index is of {searched!r}",
            place=name,
            remedy="Search with the encoder that encoded the passages.",
        )
    if index.dimension < retriever.dimension and searched == "vector" and not config.untied:
        retriever.cut(index.dimension)  # as the passages, whose encoder it is
    if retriever.dimension != index.dimension:
        raise QontextError(
            f"the encoder has {retriever.dimension} dimensions, the index has {index.dimension}",
            place=name,
            remedy="Search with the encoder that encoded the passages.",
        )
    return retriever


def _run_of(queries: list[str], numbers: Any, scores: Any, index: Index) -> Run:
    """The run of an index's results; empty positions are skipped."""
    import numpy as np

    from qontext.data.runs import Run

    hit = numbers >= 0
    query_codes = np.broadcast_to(np.arange(len(queries))[:, None], hit.shape)[hit]
    different, codes = np.unique(numbers[hit], return_inverse=True)
    return Run.from_codes(query_codes, queries, codes, index.names(different), scores[hit])


def _query_encoder(config: SearchConfig, encoder: dict[str, str]) -> str:
    """The name of the query encoder, checked against the passages' vectors."""
    from qontext.frame.inputs import digest_of, find

    assert config.index is not None
    if config.encoder is None:
        remedy = "Name it with --encoder, or encode the passages again."
        return find(encoder, Path(config.index), "the encoder of the passages", remedy=remedy)
    if not config.untied and digest_of(config.encoder, "encoder") != encoder["digest"]:
        raise QontextError(
            f"is not the encoder that encoded the passages ({encoder['path']})",
            place=config.encoder,
            remedy="Encode the passages with it first, or pass --untied if the two were trained as a pair.",
        )
    return config.encoder
