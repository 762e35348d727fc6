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
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import DeviceConfig, Input, Options
from qontext.frame.kinds import Kind, Kinds

if TYPE_CHECKING:
    from qontext.models.folder import TextKind
    from qontext.queries.words import Array
    from qontext.retrieve.system import IndexRanker

PAIRS = 4096
DEPTH = 100
"""Maximum rank that is computed; beyond it, rank and score are 0."""
VECTORS = "vectors-"
"""File names of vectors, which are removed at the end of a stage."""


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
    """All queries and their passages, by their paths."""

    queries: str
    passages: str

    def contents(self, between: str | None) -> Iterator[str]:
        """Titles and texts in order, with `between` between them; None leaves out the titles."""
        from qontext.data.collection import read_passages

        return (passage.joined(between) for passage in read_passages(self.passages))


class Judge(ABC):
    """Columns for the queries of one part. It is opened with its options, the texts of all parts, and the directory that
    the stage writes."""

    Options: ClassVar[type[Options]] = Options
    between: str | None = " "
    """Stands between the title and the text of a passage: of a model, by the rule of titles in its folder; None leaves out
    the title."""

    def __init__(self, options: Any, texts: JudgedTexts, work: Workdir) -> None:
        self.options, self.work = options, work

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

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        shares = overlap(part.pairs())
        passed = (shares >= self.options.at_least) & (shares <= self.options.at_most)
        return {"overlap": shares, "score": shares, "passed": passed}


class RerankerOptions(Options, DeviceConfig):
    reranker: Annotated[str, Input()]
    """Cross-encoder: a sequence classifier with one logit, as for `rerank`."""

    at_least: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Minimum probability to keep a query."""


class ByReranker(Judge):
    Options = RerankerOptions

    def __init__(self, options: RerankerOptions, texts: JudgedTexts, work: Workdir) -> None:
        from qontext.models.cross_encoder import CrossEncoder

        super().__init__(options, texts, work)
        self.reranker = CrossEncoder(options.reranker, **_computing(options, work))
        self.between = self.reranker.titles.between

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        chance = probabilities(self.reranker, part.pairs())
        return {"rerank": chance, "score": chance, "passed": chance >= self.options.at_least}


class RetrievalOptions(Options, DeviceConfig):
    retriever: Annotated[str | None, Input()] = None
    """Dense retriever. Default: BM25."""

    top: Annotated[int, Field(ge=1)] = 10
    """The passage must be among this many top results. In the reverse direction, the cutoff is this many times the
    passage's number of queries."""

    skip: Annotated[int, Field(ge=0)] = 0
    """Queries with which the passage is already among this many top results fail, too: they teach the retriever little."""


class ByRetrieval(Judge):
    """Texts are numbered from 0 in order. Only BM25's index, or vectors in memory-mapped files, grow with the collection:
    neither contains the texts."""

    Options = RetrievalOptions
    retriever: Any = None

    def __init__(self, options: RetrievalOptions, texts: JudgedTexts, work: Workdir) -> None:
        super().__init__(options, texts, work)
        if options.retriever is not None:
            from qontext.models.retriever import Retriever

            self.retriever = Retriever(options.retriever, **_computing(options, work))
            self.between = self.retriever.titles.between
        self.forward = self.search_in(texts.contents(self.between), "passage")

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        return self._by_rank(part, part.queries)

    def _by_rank(self, part: JudgedPart, queries: Any) -> dict[str, Array]:
        found = ranks(self.forward, queries, part.numbers[part.owner], max(DEPTH, self.options.top))
        passed = (found > self.options.skip) & (found <= self.options.top)
        return {"rank": found, "score": reciprocal(found), "passed": passed}

    def search_in(self, texts: Iterable[str], kind: TextKind) -> IndexRanker:
        """The search among these texts, by words or by vectors: a file per block as in `encode`, so that a killed run
        resumes after the last complete one."""
        import numpy as np

        from qontext.frame.files import read_array
        from qontext.retrieve.bm25 import Bm25
        from qontext.retrieve.encode import BLOCK
        from qontext.retrieve.index.exact import ExactIndex
        from qontext.retrieve.index.lexical import LexicalIndex
        from qontext.retrieve.stored import ArrayVectors
        from qontext.retrieve.system import IndexRanker

        if self.retriever is None:
            return IndexRanker(LexicalIndex(Bm25.build(texts)))
        parts, stream = list[str](), iter(texts)
        with log.progress(f"encode {kind}s", None, "texts") as advance:
            while block := list(islice(stream, BLOCK)):
                parts.append(f"{VECTORS}{kind}-{len(parts):05d}.npy")
                if not self.work.has(parts[-1]):
                    vectors = self.retriever.encode(block, kind, advance=advance)
                    with self.work.write(parts[-1]) as path, path.open("wb") as file:
                        np.save(file, vectors, allow_pickle=False)
        shape = (None, self.retriever.dimension)
        vectors = ArrayVectors([read_array(self.work.path / part, "f", shape=shape) for part in parts])
        return IndexRanker(ExactIndex(vectors, device=str(self.retriever.device)), self.retriever)

    def known(self, among: IndexRanker, texts: list[str], numbers: Array) -> Any:
        """The search input for texts of these numbers among those: their vectors, if they have been encoded."""
        index: Any = among.index
        return texts if self.retriever is None else index.vectors.take(numbers)


class Mutual(ByRetrieval):
    def __init__(self, options: RetrievalOptions, texts: JudgedTexts, work: Workdir) -> None:
        super().__init__(options, texts, work)
        self.backward = self.search_in(_queries(texts.queries), "query")

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        import numpy as np

        from qontext.queries.words import READ_CHARACTERS

        mine = np.arange(part.first, part.first + len(part.queries))
        found = self._by_rank(part, self.known(self.backward, part.queries, mine))
        own = np.bincount(part.owner, minlength=len(part.contents))
        contents = [content[:READ_CHARACTERS] for content in part.contents]
        known = self.known(self.forward, contents, part.numbers)
        depth = max(DEPTH, self.options.top)
        back = back_ranks(self.backward, known, part.owner, part.first, depth * own)
        of_passage = own[part.owner]
        # Both directions have equal weight; a passage's best own query has the full score.
        there, again = found["score"], reciprocal(-(-back // of_passage))
        both = np.where((there > 0) & (again > 0), 2 * there * again / np.maximum(there + again, 1e-9), 0.0)
        returns = (back > 0) & (back <= self.options.top * of_passage)
        return {
            "rank": found["rank"], "back_rank": back, "score": both.astype(np.float32),
            "passed": found["passed"] & returns,
        }  # fmt: skip


def ranks(ranker: IndexRanker, queries: Any, targets: Array, depth: int) -> Array:
    """[N] the rank (from 1) of number `targets[n]` in the search for `queries[n]`; 0 beyond `depth`."""
    import numpy as np

    numbers = ranker.top(queries, depth)[0]
    places = (numbers == targets[:, None]) * np.arange(1, numbers.shape[1] + 1)
    best: Array = places.max(axis=1, initial=0).astype(np.int32)
    return best


def back_ranks(ranker: IndexRanker, passages: Any, owner: Array, first: int, most: Array) -> Array:
    """[N] the rank (from 1) of each text in the search with its own passage, among all texts; 0 beyond the depth. The N
    texts are numbered from `first` on; text n belongs to passage `owner[n]` of the U, each searched to rank `most[u]`."""
    import numpy as np

    found = np.zeros(len(owner), np.int32)
    numbers = ranker.top(passages, int(most.max(initial=1)), kind="passage")[0] - first
    inside = (numbers >= 0) & (numbers < len(owner))
    mine = inside & (owner[np.where(inside, numbers, 0)] == np.arange(len(most))[:, None])
    row, column = np.nonzero(mine & (np.arange(numbers.shape[1]) < most[:, None]))
    found[numbers[row, column]] = column + 1
    return found


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


def _computing(options: DeviceConfig, work: Workdir) -> dict[str, Any]:
    """The device, and the number format that the stage has settled on."""
    from qontext.models.precision import resolve_device, settle_precision

    precision = settle_precision(work, "auto", resolve_device(options.device))
    return {"device": options.device, "precision": precision}


def _queries(source: str) -> Iterator[str]:
    from qontext.data import records

    for batch in records.read_table(source, records.QUERIES, columns=["query"]):
        yield from batch["query"].to_pylist()
