"""Rankers: texts in, a run out. A `Ranker` is for texts what an `Index` is for vectors.

IndexRanker     an index of texts, or an index of vectors with the encoder of the queries
Fused           s(q, p) = Σ_rankers  w · (s - min) / std        over the candidates of each
TokenReranked   the candidates of another ranker, fused with their MaxSim
PairReranked    the candidates of another ranker, the best ones fused with a cross-encoder's scores
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from qontext.retrieve.index import Array, Index, check_found

if TYPE_CHECKING:
    from qontext.data.passage import Passage
    from qontext.data.runs import Run
    from qontext.models.folder import TextKind
    from qontext.retrieve.max_sim import TokenBits
    from qontext.retrieve.where import Mask

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


class EncodesTokens(Protocol):
    """An encoder of one vector that also has those of its tokens."""

    model: str
    """A folder or a Hub name."""

    def token_vectors(self, texts: Sequence[str], kind: TextKind) -> list[Array]:
        """[T, D] for each text: the vectors of its tokens."""
        ...


class ScoresPairs(Protocol):
    """A cross-encoder."""

    def score(self, pairs: Sequence[tuple[str, Passage | str]]) -> Array:
        """[N] the score of each query and passage."""
        ...


def everything(index: Index) -> None:
    """All passages."""


class Ranker(ABC):
    """Ranks the passages of a collection."""

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
    """Several rankers; the score of a passage is the weighted sum of its standardized scores."""

    def __init__(self, rankers: Sequence[Ranker], weights: Sequence[float]) -> None:
        self.rankers, self.weights = rankers, weights

    def rank(self, queries: Queries, k: int, *, kind: TextKind = "query", among: Among = everything) -> Run:
        from qontext.retrieve.fuse import hybrid

        depth = max(k, CANDIDATES)
        runs = [ranker.rank(queries, depth, kind=kind, among=among) for ranker in self.rankers]
        return hybrid(runs, self.weights, k)


class TokenReranked(Ranker):
    """The candidates of another ranker, compared with the query token by token; `weight` is that of this comparison."""

    def __init__(self, first: Ranker, bits: TokenBits, encoder: EncodesTokens, weight: float) -> None:
        self.first, self.bits, self.encoder, self.weight = first, bits, encoder, weight

    def rank(self, queries: Queries, k: int, *, kind: TextKind = "query", among: Among = everything) -> Run:
        candidates = self.first.rank(queries, max(k, CANDIDATES), kind=kind, among=among)
        vectors = self.encoder.token_vectors([queries[query] for query in candidates.queries], kind)
        return self.bits.reranked(candidates, vectors, self.weight).top(k)


class PairReranked(Ranker):
    """The candidates of another ranker, of which a cross-encoder reads the best `depth` together with the query; `weight` is
    that of its scores. `passages` maps ids to passages."""

    def __init__(
        self,
        first: Ranker,
        model: ScoresPairs,
        passages: Callable[[set[str]], Mapping[str, Passage]],
        depth: int,
        weight: float,
    ) -> None:
        self.first, self.model, self.passages = first, model, passages
        self.depth, self.weight = depth, weight

    def rank(self, queries: Queries, k: int, *, kind: TextKind = "query", among: Among = everything) -> Run:
        import numpy as np

        from qontext.data.runs import Run
        from qontext.retrieve.fuse import hybrid

        candidates = self.first.rank(queries, max(k, CANDIDATES), kind=kind, among=among)
        if not candidates.size:
            return candidates
        top = candidates.top(self.depth)
        texts = self.passages({*top.ids[np.unique(top.codes)]})
        pairs: list[tuple[str, Passage | str]] = [
            (queries[top.queries[q]], texts[top.ids[code]]) for q, code in zip(top.row_queries(), top.codes)
        ]
        rows = (top.row_queries(), top.queries, top.codes, top.ids)
        scored = Run.from_codes(*rows, self.model.score(pairs).astype(np.float64))
        return hybrid([candidates, scored], (1 - self.weight, self.weight), k)
