"""Judges score how well queries match their passages. Each computes columns, including `score` and `passed`.
A judge sees one part of queries at a time; its columns do not depend on other parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from qontext.frame.artifacts import Workdir
from qontext.frame.config import DeviceConfig, Input, Options
from qontext.frame.errors import QontextError
from qontext.frame.kinds import Kind, Kinds

if TYPE_CHECKING:
    from qontext.models.folder import TextKind
    from qontext.queries.filtering.lookup import Lookup
    from qontext.queries.filtering.searchers import TextIndex
    from qontext.queries.words import Array


class JudgedPart(NamedTuple):
    """N queries and the U passages that they belong to."""

    queries: list[str]
    owner: Array
    """[N] index among the U passages."""
    contents: list[str]
    """[U] the passages, with their titles as the judge reads them."""
    numbers: Array
    """[U] the passages' numbers in the collection."""
    first: int
    """The number of the first query among all queries."""


JUDGES = Kinds(
    "judge",
    "qontext.judges",
    "qontext.queries.filtering.judges:Judge",
    {
        "overlap": Kind("qontext.queries.filtering.judges:ByOverlap", "shared words"),
        "retrieval": Kind("qontext.queries.filtering.judges:ByRetrieval", "the query finds its passage"),
        "reranker": Kind("qontext.queries.filtering.judges:ByReranker", "a cross-encoder scores the pair"),
        "mutual": Kind(
            "qontext.queries.filtering.judges:Mutual",
            "the query finds its passage, and the passage its query",
        ),
    },
)


@dataclass(frozen=True)
class JudgedTexts:
    """All queries, by the path of their folder, and their passages."""

    queries: str
    passages: Lookup


class Judge(ABC):
    """Columns for the queries of one part."""

    Options: ClassVar[type[Options]] = Options
    between: str | None = " "
    """Stands between the title and the text of a passage: of a model, by the rule of titles in its folder; None leaves out
    the title."""

    @classmethod
    @abstractmethod
    def open(cls, options: Any, collection: JudgedTexts, work: Workdir) -> Judge:
        """Open the judge, with the statistics of the collection that it needs."""

    @abstractmethod
    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        """[N] each: `score` between 0 and 1, `passed`, and the judge's additional columns."""


class OverlapOptions(Options):
    at_least: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Minimum value to keep a query."""

    at_most: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Maximum value to keep a query; below 1, mere copies of the passage are dropped."""


class ByOverlap(Judge):
    Options = OverlapOptions

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    @classmethod
    def open(cls, options: OverlapOptions, collection: JudgedTexts, work: Workdir) -> Judge:
        return cls(options.at_least, options.at_most)

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        from qontext.queries.filtering import signals

        shares = signals.overlap(part.queries, [part.contents[n] for n in part.owner.tolist()])
        return {"overlap": shares, "score": shares, "passed": (shares >= self.low) & (shares <= self.high)}


class RerankerOptions(Options, DeviceConfig):
    reranker: Annotated[str | None, Input()] = None
    """Cross-encoder: a sequence classifier with one logit, as for `rerank`."""

    at_least: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Minimum probability to keep a query."""

    @model_validator(mode="after")
    def _names_a_reranker(self) -> Self:
        if self.reranker is None:
            raise QontextError(
                "filtering by reranker needs a cross-encoder", remedy="Name it with --reranker."
            )
        return self


class ByReranker(Judge):
    Options = RerankerOptions

    def __init__(self, reranker: Any, low: float) -> None:
        self.reranker, self.low, self.between = reranker, low, reranker.titles.between

    @classmethod
    def open(cls, options: RerankerOptions, collection: JudgedTexts, work: Workdir) -> Judge:
        return cls(open_reranker(str(options.reranker), options.device, work), options.at_least)

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        from qontext.queries.filtering import signals

        chance = signals.probabilities(
            self.reranker, part.queries, [part.contents[n] for n in part.owner.tolist()]
        )
        return {"rerank": chance, "score": chance, "passed": chance >= self.low}


class RetrievalOptions(Options, DeviceConfig):
    retriever: Annotated[str | None, Input()] = None
    """Dense retriever. Default: BM25."""

    top: Annotated[int, Field(ge=1)] = 10
    """The passage must be among this many top results. In the reverse direction, the cutoff is this many times the
    passage's number of queries."""

    skip: Annotated[int, Field(ge=0)] = 0
    """Queries with which the passage is already among this many top results fail, too: they teach the retriever little."""

    depth: Annotated[int, Field(ge=1)] = 100
    """Maximum rank that is computed; beyond it, rank and score are 0."""

    @model_validator(mode="after")
    def _can_pass(self) -> Self:
        if self.skip >= self.top:
            raise QontextError(
                f"skip is {self.skip}, but top is {self.top}, so no query would pass", remedy="Raise --top."
            )
        return self

    @property
    def ranks(self) -> tuple[int, int]:
        """The best and the worst rank of a passage whose query passes."""
        return self.skip + 1, self.top


class ByRetrieval(Judge):
    Options = RetrievalOptions

    def __init__(self, forward: TextIndex, depth: int, ranks: tuple[int, int]) -> None:
        self.forward, self.depth, self.ranks = forward, depth, ranks
        self.between = forward.between

    @classmethod
    def open(cls, options: RetrievalOptions, collection: JudgedTexts, work: Workdir) -> Judge:
        forward = index_passages(
            open_retriever(options.retriever, options.device, work), collection.passages, work
        )
        return cls(forward, max(options.depth, options.top), options.ranks)

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        from qontext.queries.filtering import signals

        ranks = signals.rank(part.queries, part.numbers[part.owner], self.forward, self.depth)
        best, worst = self.ranks
        return {"rank": ranks, "score": reciprocal(ranks), "passed": (ranks >= best) & (ranks <= worst)}


class Mutual(Judge):
    Options = RetrievalOptions

    def __init__(self, forward: TextIndex, backward: TextIndex, depth: int, ranks: tuple[int, int]) -> None:
        self.forward, self.backward, self.depth, self.ranks = forward, backward, depth, ranks
        self.between = forward.between

    @classmethod
    def open(cls, options: RetrievalOptions, collection: JudgedTexts, work: Workdir) -> Judge:
        from qontext.data import records

        retriever = open_retriever(options.retriever, options.device, work)
        forward = index_passages(retriever, collection.passages, work)
        texts, total = _queries(collection.queries), records.count_rows(collection.queries)
        backward = open_searcher(retriever, work, "queries", texts, total, "query", "passage")
        return cls(forward, backward, max(options.depth, options.top), options.ranks)

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        import numpy as np

        from qontext.queries.filtering import signals
        from qontext.queries.words import READ_CHARACTERS

        mine = np.arange(part.first, part.first + len(part.queries))
        queries = known(self.backward, part.queries, mine)
        ranks = signals.rank(queries, part.numbers[part.owner], self.forward, self.depth)
        own = np.bincount(part.owner, minlength=len(part.contents))
        contents = known(self.forward, [content[:READ_CHARACTERS] for content in part.contents], part.numbers)
        back = signals.back_ranks(contents, part.owner, part.first, self.backward, self.depth * own)
        of_passage = own[part.owner]
        best, worst = self.ranks
        returns = (back > 0) & (back <= worst * of_passage)
        # Both directions have equal weight; a passage's best own query has the full score.
        there, again = reciprocal(ranks), reciprocal(-(-back // of_passage))
        both = np.where((there > 0) & (again > 0), 2 * there * again / np.maximum(there + again, 1e-9), 0.0)
        return {
            "rank": ranks, "back_rank": back, "score": both.astype(np.float32),
            "passed": (ranks >= best) & (ranks <= worst) & returns,
        }  # fmt: skip


def index_passages(retriever: Any, passages: Lookup, work: Workdir) -> TextIndex:
    """An index of the passages, to search with queries; titles are read by the retriever's rule."""
    contents = passages.contents(retriever.titles.between if retriever else " ")
    return open_searcher(retriever, work, "passages", contents, passages.count, "passage", "query")


def open_retriever(name: str | None, device: str, work: Workdir) -> Any:
    """The dense retriever of a stage that writes `work`; None for BM25."""
    if name is None:
        return None
    from qontext.models.precision import resolve_device, settle_precision
    from qontext.models.retriever import Retriever

    return Retriever(name, device=device, precision=settle_precision(work, "auto", resolve_device(device)))


def open_reranker(name: str, device: str, work: Workdir) -> Any:
    """The cross-encoder of a stage that writes `work`."""
    from qontext.models.cross_encoder import CrossEncoder
    from qontext.models.precision import resolve_device, settle_precision

    return CrossEncoder(name, device=device, precision=settle_precision(work, "auto", resolve_device(device)))


def open_searcher(
    retriever: Any,
    work: Workdir,
    name: str,
    texts: Iterable[str],
    count: int,
    kind: TextKind,
    queries_kind: TextKind,
) -> TextIndex:
    """BM25 over the texts, or their vectors encoded as `kind`, to search with texts encoded as `queries_kind`."""
    from qontext.queries.filtering.searchers import TextIndex, encode_into

    if retriever is None:
        return TextIndex.lexical(texts, count)
    return TextIndex.dense(retriever, encode_into(work, name, retriever, texts, kind, count), queries_kind)


def known(collection: TextIndex, texts: list[str], numbers: Array) -> Any:
    """The search input: texts, or their vectors if their collection has been encoded."""
    return texts if collection.vectors is None else collection.vectors.take(numbers)


def reciprocal(ranks: Array) -> Array:
    """Reciprocal rank: 1 for rank 1, 1/2 for rank 2, …, 0 for rank 0."""
    import numpy as np

    return np.where(ranks > 0, 1.0 / np.maximum(ranks, 1), 0.0).astype(np.float32)


def _queries(source: str) -> Iterator[str]:
    from qontext.data import records

    for batch in records.read_table(source, records.QUERIES, columns=["query"]):
        yield from batch["query"].to_pylist()
