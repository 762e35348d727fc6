"""Judges score how well queries match their passages. Each computes columns, including `score` and `passed`.
A judge sees one part of queries at a time; its columns do not depend on other parts.

- ``overlap``   the share of the query's content words, stemmed, that are in the passage or its title
- ``rank``      rank of the passage in a search with the query, by BM25 or a dense retriever; 0 beyond the depth (round trip)
- ``back_rank`` rank of the query among all queries in a search with the passage (reverse direction)
- ``rerank``    probability of the pair by a cross-encoder

Shapes: N queries, U passages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from qontext.frame.artifacts import Workdir
from qontext.frame.config import DeviceConfig, Input, Options
from qontext.frame.errors import QontextError
from qontext.frame.kinds import Kind, Kinds

if TYPE_CHECKING:
    from qontext.queries.searches import TextIndex
    from qontext.queries.words import Array

PAIRS = 4096


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

    def pairs(self) -> list[tuple[str, str]]:
        """Each query and its passage."""
        return [(query, self.contents[n]) for query, n in zip(self.queries, self.owner.tolist())]


JUDGES = Kinds(
    "judge",
    "qontext.judges",
    "qontext.queries.judges:Judge",
    {
        "overlap": Kind("qontext.queries.judges:ByOverlap", "shared words"),
        "retrieval": Kind("qontext.queries.judges:ByRetrieval", "the query finds its passage"),
        "reranker": Kind("qontext.queries.judges:ByReranker", "a cross-encoder scores the pair"),
        "mutual": Kind(
            "qontext.queries.judges:Mutual", "the query finds its passage, and the passage its query"
        ),
    },
)


class JudgedTexts(NamedTuple):
    """All queries and their passages, by their paths, and the number of passages."""

    queries: str
    passages: str
    total: int

    def contents(self, between: str | None) -> Iterator[str]:
        """Titles and texts in order, with `between` between them; None leaves out the titles."""
        from qontext.data.collection import read_passages

        return (passage.joined(between) for passage in read_passages(self.passages))


class Judge(ABC):
    """Columns for the queries of one part."""

    Options: ClassVar[type[Options]] = Options
    between: str | None = " "
    """Stands between the title and the text of a passage: of a model, by the rule of titles in its folder; None leaves out
    the title."""

    @classmethod
    @abstractmethod
    def open(cls, options: Any, collection: JudgedTexts, work: Workdir) -> Self:
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
    def open(cls, options: OverlapOptions, collection: JudgedTexts, work: Workdir) -> Self:
        return cls(options.at_least, options.at_most)

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        shares = overlap(part.pairs())
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
    def open(cls, options: RerankerOptions, collection: JudgedTexts, work: Workdir) -> Self:
        from qontext.models.cross_encoder import CrossEncoder

        return cls(CrossEncoder(str(options.reranker), **_computing(options, work)), options.at_least)

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        chance = probabilities(self.reranker, part.pairs())
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


class ByRetrieval(Judge):
    Options = RetrievalOptions

    def __init__(self, options: RetrievalOptions, collection: JudgedTexts, work: Workdir) -> None:
        from qontext.queries.searches import TextIndex

        self.retriever, self.top = _open_retriever(options, work), options.top
        self.skip, self.depth = options.skip, max(options.depth, options.top)
        if self.retriever is not None:
            self.between = self.retriever.titles.between
        contents = collection.contents(self.between)
        self.forward = TextIndex.build(self.retriever, work, "passages", contents, collection.total)

    @classmethod
    def open(cls, options: RetrievalOptions, collection: JudgedTexts, work: Workdir) -> Self:
        return cls(options, collection, work)

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        return self._by_rank(part, part.queries)

    def _by_rank(self, part: JudgedPart, queries: Any) -> dict[str, Array]:
        ranks = self.forward.ranks(queries, part.numbers[part.owner], self.depth)
        passed = (ranks > self.skip) & (ranks <= self.top)
        return {"rank": ranks, "score": reciprocal(ranks), "passed": passed}


class Mutual(ByRetrieval):
    def __init__(self, options: RetrievalOptions, collection: JudgedTexts, work: Workdir) -> None:
        from qontext.data import records
        from qontext.queries.searches import TextIndex

        super().__init__(options, collection, work)
        texts, total = _queries(collection.queries), records.count_rows(collection.queries)
        self.backward: TextIndex = TextIndex.build(self.retriever, work, "queries", texts, total)

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        import numpy as np

        from qontext.queries.words import READ_CHARACTERS

        mine = np.arange(part.first, part.first + len(part.queries))
        found = self._by_rank(part, self.backward.known(part.queries, mine))
        own = np.bincount(part.owner, minlength=len(part.contents))
        contents = [content[:READ_CHARACTERS] for content in part.contents]
        known = self.forward.known(contents, part.numbers)
        back = self.backward.back_ranks(known, part.owner, part.first, self.depth * own)
        of_passage = own[part.owner]
        # Both directions have equal weight; a passage's best own query has the full score.
        there, again = found["score"], reciprocal(-(-back // of_passage))
        both = np.where((there > 0) & (again > 0), 2 * there * again / np.maximum(there + again, 1e-9), 0.0)
        returns = (back > 0) & (back <= self.top * of_passage)
        return {
            "rank": found["rank"], "back_rank": back, "score": both.astype(np.float32),
            "passed": found["passed"] & returns,
        }  # fmt: skip


def overlap(pairs: Sequence[tuple[str, str]]) -> Array:
    """[N] between 0 and 1; a text without a content word has 0."""
    import numpy as np

    from qontext.queries.words import READ_CHARACTERS, content_words
    from qontext.retrieve.analyzer import term_of

    stem, stems = term_of("english"), dict[str, set[str]]()
    shares = np.zeros(len(pairs), np.float32)
    for n, (text, passage) in enumerate(pairs):
        passage_stems = stems.get(passage)
        if passage_stems is None:
            stems.clear()  # pairs of one passage are consecutive
            passage_stems = stems[passage] = set(map(stem, content_words(passage[:READ_CHARACTERS])))
        query_stems = {stem(word) for word in content_words(text[:READ_CHARACTERS])}
        shares[n] = len(query_stems & passage_stems) / len(query_stems) if query_stems else 0.0
    return shares


def probabilities(reranker: Any, pairs: Sequence[tuple[str, str]]) -> Array:
    """[N] the probabilities of the pairs by a `CrossEncoder`."""
    import numpy as np

    from qontext.queries.words import READ_CHARACTERS

    scores = np.zeros(len(pairs), np.float32)
    for start in range(0, len(pairs), PAIRS):
        some = [(text, passage[:READ_CHARACTERS]) for text, passage in pairs[start : start + PAIRS]]
        scores[start : start + PAIRS] = reranker.score(some)
    chances: Array = 0.5 + 0.5 * np.tanh(scores / 2)  # the logistic function, without overflow
    return chances


def reciprocal(ranks: Array) -> Array:
    """Reciprocal rank: 1 for rank 1, 1/2 for rank 2, …, 0 for rank 0."""
    import numpy as np

    return np.where(ranks > 0, 1.0 / np.maximum(ranks, 1), 0.0).astype(np.float32)


def _open_retriever(options: RetrievalOptions, work: Workdir) -> Any:
    """The dense retriever of a stage that writes `work`; None for BM25."""
    if options.retriever is None:
        return None
    from qontext.models.retriever import Retriever

    return Retriever(options.retriever, **_computing(options, work))


def _computing(options: DeviceConfig, work: Workdir) -> dict[str, Any]:
    """The device, and the number format that the stage has settled on."""
    from qontext.models.precision import resolve_device, settle_precision

    precision = settle_precision(work, "auto", resolve_device(options.device))
    return {"device": options.device, "precision": precision}


def _queries(source: str) -> Iterator[str]:
    from qontext.data import records

    for batch in records.read_table(source, records.QUERIES, columns=["query"]):
        yield from batch["query"].to_pylist()
