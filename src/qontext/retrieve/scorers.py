"""Ways to compare a query with the candidates of another search.

    pairs      s(q, p) = the logit of a cross-encoder, or the mean of several
    vectors    s(q, p) = Σ_i max_j <e_i, e_j>                          (MaxSim)
    bits       s(q, p) = mean_i max_j <e_i, sign(e_j)> / √D
    words      s(q, p) = Σ_t w_qt · w_pt

Bits need no training: `encode --tokens` stores one for each dimension of each token, from the forward pass that makes the
vectors. A vector is an average over the tokens, in which what one of them says is lost; the signs alone are enough, since
the query keeps its numbers: 48 bytes for a token of 384 dimensions. Special tokens have no vector.

Shapes: I tokens of a query, J tokens of all passages, P passages, D dimensions, B bytes of a token's bits, R candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from qontext.data.places import Found
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.models.packed import Packed
from qontext.retrieve.stored import Encoded, form_of, open_bits, open_stored

if TYPE_CHECKING:
    from qontext.data.runs import Run
    from qontext.models.folder import TextKind

Array: TypeAlias = np.ndarray[Any, Any]
Scores: TypeAlias = Iterator[Array]
"""The scores of each query's candidates, query by query."""

TOKENS_AT_ONCE = 1 << 15
"""Tokens of passages that are numbers at the same time: 50 MB of them with 384 dimensions."""


def _ignore(pairs: int) -> None:
    """No progress is shown."""


class PairScorer:
    """Cross-encoders, which read query and passage together; `find` maps ids to passages."""

    name = "reranker"

    def __init__(self, models: Sequence[Any], find: Callable[[set[str]], Mapping[str, Found]]) -> None:
        self.models, self.find = models, find

    @property
    def max_length(self) -> int:
        """The maximum tokens of a pair."""
        return int(self.models[0].max_length)

    def score(
        self,
        queries: Mapping[str, str],
        candidates: Run,
        kind: TextKind = "query",
        advance: Callable[[int], None] = _ignore,
    ) -> Array:
        """[R] the mean of the models' scores."""
        found = self.find({*candidates.ids[np.unique(candidates.codes)]})
        pairs = [
            (queries[candidates.queries[q]], found[candidates.ids[code]].passage)
            for q, code in zip(candidates.row_queries(), candidates.codes)
        ]
        each = [model.score(pairs, advance=advance) for model in self.models]
        return np.asarray(np.mean(each, axis=0, dtype=np.float64))


class TokenScorer:
    """The tokens that `encode` wrote to `path`: bits, vectors, or weights of words. `encoder` reads the queries."""

    name = "tokens"

    def __init__(self, path: Path | str, encoder: Any) -> None:
        self.encoder, form = encoder, stored_form(path)
        self.encoded = open_bits(path) if form == "bits" else open_stored(path, "tokens", "sparse")
        self._compare = {"bits": _by_bits, "tokens": _by_vectors, "sparse": _by_words}[form]

    def score(
        self,
        queries: Mapping[str, str],
        candidates: Run,
        kind: TextKind = "query",
        advance: Callable[[int], None] = _ignore,
    ) -> Array:
        """[R] the scores of the candidates."""
        different, codes = np.unique(candidates.codes, return_inverse=True)
        places = np.split(self._places(candidates.ids[different])[codes], candidates.starts[1:-1])
        texts = [queries[query] for query in candidates.queries]
        scores = []
        for own in self._compare(self.encoder, self.encoded, texts, kind, places):
            scores.append(own)
            advance(len(own))
        return np.concatenate(scores).astype(np.float64)

    @property
    def max_length(self) -> int:
        """The maximum tokens of a passage."""
        return int(self.encoded.artifact.summary["max_length"])

    def _places(self, ids: Array) -> Array:
        """[P] where the passages with these ids stand; refused if one is not there."""
        own = self.encoded.ids
        numbers = np.minimum(np.searchsorted(own, ids), len(own) - 1)
        if (is_missing := own[numbers] != ids).any():
            raise QontextError(
                f"lacks the passage {ids[is_missing.argmax()]!r}",
                place=self.encoded.artifact.path,
                remedy="Encode the passages that were searched.",
            )
        return self.encoded.places(numbers)


def stored_form(path: Path | str) -> str:
    """The form in which `encode` stored the passages' tokens: bits, beside vectors; or tokens or sparse."""
    form = form_of(open_artifact(path, verb="encode"))
    return "bits" if form in ("vector", "windows") else form


def bits_of(vectors_JD: Array) -> Array:
    """[J, B] the signs of the vectors."""
    return np.packbits(vectors_JD > 0, axis=1)


def similarities(query_ID: Array, passages: Packed) -> Array:
    """[P] the similarity of a query to passages of bits."""
    starts, first, parts = passages.starts, 0, [np.zeros(0, np.float32)]
    while first < len(passages):
        # At least one passage, and no more tokens than fit.
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + TOKENS_AT_ONCE, "right")) - 1)
        products_IJ = _products(query_ID, passages.values[starts[first] : starts[last]])
        greatest_IP = np.maximum.reduceat(products_IJ, starts[first:last] - starts[first], axis=1)
        parts.append(greatest_IP.mean(0) / np.float32(np.sqrt(query_ID.shape[1])))
        first = last
    return np.concatenate(parts)


def _products(query_ID: Array, bits_JB: Array) -> Array:
    """[I, J] <e_i, sign(e_j)>."""
    are_positive_JD = np.unpackbits(bits_JB, axis=1, count=query_ID.shape[1]).astype(np.float32)
    # With signs s = 2b - 1: <e, s> = 2 <e, b> - Σ e.
    products_IJ: Array = 2 * (query_ID @ are_positive_JD.T) - query_ID.sum(1, keepdims=True)
    return products_IJ


def _by_bits(
    encoder: Any, encoded: Encoded, texts: Sequence[str], kind: TextKind, places: Sequence[Array]
) -> Scores:
    for query_ID, own in zip(encoder.token_vectors(texts, kind), places, strict=True):
        yield similarities(query_ID, encoded.take(own))


def _by_vectors(
    encoder: Any, encoded: Encoded, texts: Sequence[str], kind: TextKind, places: Sequence[Array]
) -> Scores:
    from qontext.models.representations.tokens import max_similarity
    from qontext.retrieve.index.exact import rectangle

    device = encoder.retriever.device
    for row, own in zip(rectangle(encoder.encode(texts, kind)), places, strict=True):
        passages_PJD = rectangle(encoded.take(own)).to(device)
        yield max_similarity(row[None].to(device), passages_PJD)[0].cpu().numpy()


def _by_words(
    encoder: Any, encoded: Encoded, texts: Sequence[str], kind: TextKind, places: Sequence[Array]
) -> Scores:
    ends = np.cumsum([len(postings) for postings in encoded.parts]).tolist()
    packed: Packed = encoder.encode(texts, kind)
    for number, own in enumerate(places):
        one = packed[number : number + 1]
        assert one.terms is not None
        found = np.empty(len(own), np.float32)
        for postings, first, end in zip(encoded.parts, [0, *ends], ends):
            here = (own >= first) & (own < end)
            found[here] = postings.scores_of(own[here] - first, one.terms.tolist(), one.values)
        yield found
