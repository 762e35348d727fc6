"""The combinations of a search: the words of BM25, the vectors of an encoder, the vectors of its tokens, a cross-encoder.
And the rankers that they are made of: texts in, a run out.

| name                                   | words | encoder            | tokens | cross-encoder |
|----------------------------------------|-------|--------------------|--------|---------------|
| bm25                                   | yes   |                    |        |               |
| start, adapted                         |       | original, adapted  |        |               |
| hybrid-start, hybrid                   | yes   | original, adapted  |        |               |
| tokens-start, tokens                   | yes   | original, adapted  | yes    |               |
| reranked-start, reranked               | yes   | original, adapted  |        | yes           |
| tokens-reranked-start, tokens-reranked | yes   | original, adapted  | yes    | yes           |

Only this module knows these names, which `adapted.json`, verdicts, runs and steps of recipes record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from qontext.frame.errors import QontextError, did_you_mean
from qontext.retrieve.index import Array, Index, check_found

if TYPE_CHECKING:
    from qontext.data.runs import Run
    from qontext.models.folder import TextKind
    from qontext.retrieve.where import Mask

EncoderName = Literal["start", "adapted"]
SystemName = Literal[
    "bm25",
    "start", "hybrid-start", "tokens-start", "reranked-start", "tokens-reranked-start",
    "adapted", "hybrid", "tokens", "reranked", "tokens-reranked",
]  # fmt: skip

WEIGHTS = (0.6, 0.4)
"""Weights of BM25 and of the vectors, without labels to tune them."""
TOKEN_WEIGHT = 0.5
"""Weight of the comparison by tokens beside both."""
RERANKER_WEIGHT = 0.8
"""Weight of a cross-encoder's scores beside those of the system that finds its candidates."""
ENCODERS: tuple[EncoderName, ...] = ("start", "adapted")
_LABELS = {"start": "original encoder", "adapted": "adapted encoder"}


@dataclass(frozen=True)
class System:
    """A combination. Tokens rerank the hits of words and vectors; a cross-encoder reranks the best of what precedes it.

    >>> System.parse("tokens-start")
    System(encoder='start', words=True, tokens=True, reranked=False)
    >>> System("adapted", words=True).name
    'hybrid'
    """

    encoder: EncoderName | None = None
    words: bool = False
    tokens: bool = False
    reranked: bool = False

    @classmethod
    def parse(cls, name: str) -> System:
        """The system with this name."""
        if name not in _BY_NAME:
            raise QontextError(f"unknown system {name!r}", remedy=did_you_mean(name, _BY_NAME))
        return _BY_NAME[name]

    @property
    def name(self) -> str:
        """Its recorded name."""
        if self.encoder is None:
            return "bm25"
        if not self.words:
            return self.encoder
        stages = ["tokens"] * self.tokens + ["reranked"] * self.reranked or ["hybrid"]
        return "-".join([*stages, *["start"] * (self.encoder == "start")])

    @property
    def label(self) -> str:
        """Its name for users."""
        parts = ["BM25"] * self.words + ([_LABELS[self.encoder]] if self.encoder else [])
        return " + ".join([*parts, *["tokens"] * self.tokens, *["cross-encoder"] * self.reranked])

    @property
    def cost(self) -> int:
        """The order of its cost. An encoder costs storage and time for its vectors, BM25 next to nothing more. Tokens
        cost storage, and a cross-encoder the most time for a question."""
        return 3 if self.reranked else 2 if self.tokens else 1 if self.encoder else 0

    @property
    def first_stage(self) -> System:
        """The system without its last stage, which finds the passages that this stage compares."""
        return replace(self, reranked=False) if self.reranked else replace(self, tokens=False)

    def with_encoder(self, encoder: EncoderName) -> System:
        """The same combination with this encoder."""
        return replace(self, encoder=encoder)


SYSTEMS = (
    System(words=True),
    *(
        System(encoder, *stages)
        for encoder in ENCODERS
        for stages in ((False,), (True,), (True, True), (True, False, True), (True, True, True))
    ),
)
"""All systems, baselines first."""
_BY_NAME = {system.name: system for system in SYSTEMS}


def label_of(name: str) -> str:
    """The label of the system with this name; other names are their own label."""
    return _BY_NAME[name].label if name in _BY_NAME else name


CANDIDATES = 100
"""Minimum hits of each ranker for fusion and reranking."""

Queries: TypeAlias = Mapping[str, str]
"""Id → text."""
Among: TypeAlias = "Callable[[Index], Mask | None]"
"""An index → which of its passages may be found, [P]; None for all."""


class Encodes(Protocol):
    """The encoder of an index."""

    def encode(self, texts: Sequence[str], kind: TextKind) -> Any:
        """[N, D] vectors, or packed representations."""
        ...


class Scorer(Protocol):
    """Compares queries with their candidates once more."""

    name: str

    def score(self, queries: Queries, candidates: Run, kind: TextKind = "query") -> Array:
        """[R] the score of each row of the candidates."""
        ...


def everything(index: Index) -> None:
    """All passages."""


class Ranker(ABC):
    """Ranks the passages of a collection: for texts what an `Index` is for vectors."""

    @abstractmethod
    def rank(self, queries: Queries, k: int, *, kind: TextKind = "query", among: Among = everything) -> Run:
        """The best k passages of each query. Texts of the `kind` passage find similar passages."""


class IndexRanker(Ranker):
    """An index; of vectors, with the encoder of its queries."""

    def __init__(self, index: Index, encoder: Encodes | None = None) -> None:
        self.index, self.encoder = index, encoder

    def rank(self, queries: Queries, k: int, *, kind: TextKind = "query", among: Among = everything) -> Run:
        import numpy as np

        from qontext.data.runs import Run

        numbers, scores = self.top(list(queries.values()), k, kind=kind, rows=among(self.index))
        is_hit = numbers >= 0
        query_codes = np.broadcast_to(np.arange(len(queries))[:, None], is_hit.shape)[is_hit]
        different, codes = np.unique(numbers[is_hit], return_inverse=True)
        names = self.index.names(different)
        return Run.from_codes(query_codes, list(queries), codes, names, scores[is_hit])

    def top(
        self, queries: Sequence[str] | Array, k: int, *, kind: TextKind = "query", rows: Mask | None = None
    ) -> tuple[Array, Array]:
        """([N, k] numbers of passages, [N, k] scores) of texts or their vectors; -1 where there are fewer."""
        inputs: Any = queries
        if self.encoder is not None and isinstance(queries, Sequence):
            inputs = self.encoder.encode(queries, kind)
        return check_found(self.index.search(inputs, k, rows), self.index, len(queries), k)


class Fused(Ranker):
    """Several rankers: s(q, p) = Σ_rankers  w · (s - min) / std  over the candidates of each."""

    def __init__(self, rankers: Sequence[Ranker], weights: Sequence[float]) -> None:
        self.rankers, self.weights = rankers, weights

    def rank(self, queries: Queries, k: int, *, kind: TextKind = "query", among: Among = everything) -> Run:
        from qontext.retrieve.fuse import hybrid

        depth = max(k, CANDIDATES)
        runs = [ranker.rank(queries, depth, kind=kind, among=among) for ranker in self.rankers]
        return hybrid(runs, self.weights, k)


class Reranked(Ranker):
    """The candidates of another ranker, of which a scorer compares the best `depth`, by default all, with the query once
    more; `weight` is that of its scores in the fusion of both."""

    def __init__(self, first: Ranker, scorer: Scorer, weight: float, depth: int | None = None) -> None:
        self.first, self.scorer, self.weight, self.depth = first, scorer, weight, depth

    def rank(self, queries: Queries, k: int, *, kind: TextKind = "query", among: Among = everything) -> Run:
        from qontext.data.runs import Run
        from qontext.retrieve.fuse import hybrid

        candidates = self.first.rank(queries, max(k, CANDIDATES), kind=kind, among=among)
        if not candidates.size:
            return candidates
        top = candidates if self.depth is None else candidates.top(self.depth)
        scores = self.scorer.score(queries, top, kind)
        scored = Run.from_codes(top.row_queries(), top.queries, top.codes, top.ids, scores)
        return hybrid([candidates, scored], (1 - self.weight, self.weight), k)
