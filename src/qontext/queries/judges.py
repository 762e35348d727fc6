"""Judges score how well queries match their passages. Each computes columns, including `score` and `passed`.
A judge sees one part of queries at a time; its columns do not depend on other parts.

- ``overlap``   the share of the query's content words, stemmed, that are in the passage or its title
- ``rank``      rank of the passage in a search with the query, by BM25 or a dense retriever; 0 beyond the depth (round trip)
- ``rerank``    probability of the pair by a cross-encoder

Shapes: N queries, U passages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import DeviceConfig, Input, Options
from qontext.frame.kinds import Kind, Kinds

if TYPE_CHECKING:
    from qontext.queries.words import Array
    from qontext.retrieve.system import IndexRanker

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
    },
)


class Judge(ABC):
    """Columns for the queries of one part. It is opened with its options, the path of the passages, and the directory that
    the stage writes."""

    Options: ClassVar[type[Options]] = Options
    between: str | None = " "
    """Stands between the title and the text of a passage: of a model, by the rule of titles in its folder; None leaves out
    the title."""

    def __init__(self, options: Any, passages: str, work: Workdir) -> None:
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

    def __init__(self, options: RerankerOptions, passages: str, work: Workdir) -> None:
        from qontext.models.cross_encoder import CrossEncoder

        super().__init__(options, passages, work)
        self.reranker = CrossEncoder(options.reranker, **_computing(options, work))
        self.between = self.reranker.titles.between

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        import numpy as np

        from qontext.queries.words import READ_CHARACTERS

        pairs = [(text, passage[:READ_CHARACTERS]) for text, passage in part.pairs()]
        # The logistic function, without overflow.
        chance = (0.5 + 0.5 * np.tanh(self.reranker.score(pairs) / 2)).astype(np.float32)
        return {"rerank": chance, "score": chance, "passed": chance >= self.options.at_least}


class RetrievalOptions(Options, DeviceConfig):
    retriever: Annotated[str | None, Input()] = None
    """Dense retriever. Default: BM25."""

    top: Annotated[int, Field(ge=1)] = 10
    """The passage must be among this many top results."""

    skip: Annotated[int, Field(ge=0)] = 0
    """Queries with which the passage is already among this many top results fail, too: they teach the retriever little."""


class ByRetrieval(Judge):
    """Passages are numbered from 0 in order. Only BM25's index, or vectors in memory-mapped files, grow with the
    collection: neither contains the texts."""

    Options = RetrievalOptions

    def __init__(self, options: RetrievalOptions, passages: str, work: Workdir) -> None:
        from qontext.data.collection import read_passages
        from qontext.models.retriever import Retriever
        from qontext.retrieve.bm25 import Bm25
        from qontext.retrieve.index.exact import ExactIndex
        from qontext.retrieve.index.lexical import LexicalIndex
        from qontext.retrieve.system import IndexRanker

        super().__init__(options, passages, work)
        if options.retriever is None:
            texts = (passage.joined(self.between) for passage in read_passages(passages))
            self.ranker = IndexRanker(LexicalIndex(Bm25.build(texts)))
            return
        retriever = Retriever(options.retriever, **_computing(options, work))
        self.between = retriever.titles.between
        texts = (passage.joined(self.between) for passage in read_passages(passages))
        index = ExactIndex(_vectors(retriever, texts, work), device=str(retriever.device))
        self.ranker = IndexRanker(index, retriever)

    def __call__(self, part: JudgedPart) -> dict[str, Array]:
        import numpy as np

        depth = max(DEPTH, self.options.top)
        found = ranks(self.ranker, part.queries, part.numbers[part.owner], depth)
        score = np.where(found > 0, 1.0 / np.maximum(found, 1), 0.0).astype(np.float32)
        passed = (found > self.options.skip) & (found <= self.options.top)
        return {"rank": found, "score": score, "passed": passed}


def ranks(ranker: IndexRanker, queries: Sequence[str], targets: Array, depth: int) -> Array:
    """[N] the rank (from 1) of number `targets[n]` in the search for `queries[n]`; 0 beyond `depth`."""
    import numpy as np

    numbers = ranker.top(queries, depth)[0]
    places = (numbers == targets[:, None]) * np.arange(1, numbers.shape[1] + 1)
    best: Array = places.max(axis=1, initial=0).astype(np.int32)
    return best


def _vectors(retriever: Any, texts: Any, work: Workdir) -> Any:
    """The vectors of passages, in a file per block as in `encode`: a killed run resumes after the last complete one."""
    import numpy as np

    from qontext.frame.files import read_array
    from qontext.retrieve.encode import BLOCK
    from qontext.retrieve.stored import ArrayVectors

    parts = list[str]()
    with log.progress("encode passages", None, "texts") as advance:
        while block := list(islice(texts, BLOCK)):
            parts.append(f"{VECTORS}{len(parts):05d}.npy")
            if not work.has(parts[-1]):
                vectors = retriever.encode(block, "passage", advance=advance)
                with work.write(parts[-1]) as path, path.open("wb") as file:
                    np.save(file, vectors, allow_pickle=False)
    shape = (None, retriever.dimension)
    return ArrayVectors([read_array(work.path / part, "f", shape=shape) for part in parts])


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


def _computing(options: DeviceConfig, work: Workdir) -> dict[str, Any]:
    """The device, and the number format that the stage has settled on."""
    from qontext.models.precision import resolve_device, settle_precision

    precision = settle_precision(work, "auto", resolve_device(options.device))
    return {"device": options.device, "precision": precision}
