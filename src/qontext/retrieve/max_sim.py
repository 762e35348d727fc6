"""Late interaction with what is stored of passages' tokens: the candidates of another search, scored again.

    vectors    s(q, p) = Σ_i max_j <e_i, e_j>                          (MaxSim)
    bits       s(q, p) = mean_i max_j <e_i, sign(e_j)> / √D
    words      s(q, p) = Σ_t w_qt · w_pt

Bits need no training: `encode --tokens` stores one for each dimension of each token, from the forward pass that makes the
vectors. A vector is an average over the tokens, in which what one of them says is lost; the signs alone are enough, since
the query keeps its numbers: 48 bytes for a token of 384 dimensions. Special tokens have no vector.

Shapes: I tokens of a query, J tokens of all passages, P passages, D dimensions, B bytes of a token's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qontext.data import records
from qontext.data.passage import Passage
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.inputs import find
from qontext.models.packed import Packed
from qontext.retrieve.stored import Encoded, form_of, open_bits, open_stored, prompts_of

if TYPE_CHECKING:
    from qontext.data.runs import Run
    from qontext.models.retriever import Retriever

Array: TypeAlias = np.ndarray[Any, Any]
Score: TypeAlias = Callable[[Sequence[str], Sequence[Array]], Iterator[Array]]
"""Queries and, for each, the places of passages → their scores, query by query."""

TOKENS_AT_ONCE = 1 << 15
"""Tokens of passages that are numbers at the same time: 50 MB of them with 384 dimensions."""
_TEXTS = pa.schema(
    [pa.field("id", pa.string(), nullable=False), pa.field("hash", pa.uint64(), nullable=False)]
)


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


class TokenBits:
    """The bits that `encode --tokens` wrote to `path`."""

    def __init__(self, path: Path | str) -> None:
        self.encoded = open_bits(path)

    def reranked(self, found: Run, queries: Sequence[Array], weight: float) -> Run:
        """The run with its scores and those by tokens fused. `queries` are the vectors [I, D] of the run's queries."""
        from qontext.data.runs import Run
        from qontext.retrieve.fuse import hybrid

        if not found.size:
            return found
        places = self._places(found.ids)
        ends = zip(queries, found.starts, found.starts[1:])
        scores = [similarities(q, self.encoded.take(places[found.codes[a:b]])) for q, a, b in ends]
        rows = (found.row_queries(), found.queries, found.codes, found.ids)
        by_tokens = Run.from_codes(*rows, np.concatenate(scores).astype(np.float64))
        return hybrid([found, by_tokens], (1 - weight, weight), found.size)

    def products(self, query_ID: Array, id: str) -> Array:
        """[I, J] the similarity of each token of a query to each token of a passage."""
        bits_JB = self.encoded.take(self._places(np.array([id], object))).values
        return _products(query_ID, bits_JB) / np.float32(np.sqrt(query_ID.shape[1]))

    def _places(self, ids: Array) -> Array:
        """[P] where the passages with these ids stand."""
        return _places(self.encoded, ids)


class StoredScorer:
    """Scores passages by what `encode` wrote of their tokens to `path`. `ids` are those of a run's passages, `needed` the
    places of the candidates there."""

    def __init__(self, path: str, ids: Array, needed: Array, *, device: str, precision: Any) -> None:
        from qontext.models.retriever import Retriever

        artifact = open_artifact(path, verb="encode")
        form = "bits" if (of := form_of(artifact)) in ("vector", "windows") else of
        self.encoded = open_bits(path) if form == "bits" else open_stored(path, "tokens", "sparse")
        self._place = np.full(len(ids), -1)
        self._place[needed] = _places(self.encoded, ids[needed])
        remedy = "Restore it, or encode the passages again."
        name = find(self.encoded.encoder, Path(path), "the encoder of the passages", remedy=remedy)
        settings: dict[str, Any] = {"title": artifact.summary.get("title"), "prompts": prompts_of(artifact)}
        model = Retriever(name, device=device, precision=precision, packed=form != "bits", **settings)
        self._score = SCORERS[form](model, self.encoded)
        self._between = model.titles.between
        self.max_length = artifact.summary["max_length"]

    def check(self, passages: Mapping[str, Passage]) -> None:
        """Refuse a passage that was encoded with another text than this one. `passages` are by id."""
        from qontext.retrieve.reuse import text_hashes

        ids = pa.array(passages, pa.string())
        texts = [passage.joined(self._between) for passage in passages.values()]
        encoded = pa.concat_tables([records.read_whole(file, _TEXTS) for file in self.encoded.id_files])
        hashes = encoded["hash"].take(pc.index_in(ids, encoded["id"])).to_numpy()
        differs = hashes != text_hashes(texts)
        if differs.any():
            raise QontextError(
                f"{differs.sum():,} of {len(differs):,} passages had other texts when they were encoded, such as "
                f"{ids[int(differs.argmax())].as_py()!r}",
                place=self.encoded.artifact.path,
                remedy="Encode the passages again.",
            )

    def score(
        self, queries: Sequence[str], candidates: Sequence[Array], advance: Callable[[int], None]
    ) -> Array:
        """The scores of each query's candidates, which are places in `ids`, one query after the other."""
        import torch

        scores = []
        with torch.inference_mode():
            for own in self._score(queries, [self._place[own] for own in candidates]):
                scores.append(own)
                advance(len(own))
        return np.concatenate(scores)


def _places(encoded: Encoded, ids: Array) -> Array:
    """[P] where the passages with these ids stand; refused if one is not there."""
    own = encoded.ids
    numbers = np.minimum(np.searchsorted(own, ids), len(own) - 1)
    if (is_missing := own[numbers] != ids).any():
        raise QontextError(
            f"lacks the passage {ids[is_missing.argmax()]!r}",
            place=encoded.artifact.path,
            remedy="Encode the passages that were searched.",
        )
    return encoded.places(numbers)


def _by_vectors(model: Retriever, encoded: Encoded) -> Score:
    from qontext.models.representations.tokens import max_similarity
    from qontext.retrieve.index.exact import rectangle

    def scores(queries: Sequence[str], places: Sequence[Array]) -> Iterator[Array]:
        for row, own in zip(rectangle(model.encode(queries, "query")), places, strict=True):
            passages_PJD = rectangle(encoded.take(own)).to(model.device)
            yield max_similarity(row[None].to(model.device), passages_PJD)[0].cpu().numpy()

    return scores


def _by_bits(retriever: Retriever, encoded: Encoded) -> Score:
    half = retriever.of("query")

    def scores(queries: Sequence[str], places: Sequence[Array]) -> Iterator[Array]:
        vectors = half.encode_each_token(half.tokenize(queries, "query"))
        for number, own in enumerate(places):
            yield similarities(vectors[number : number + 1].values, encoded.take(own))

    return scores


def _by_words(model: Retriever, encoded: Encoded) -> Score:
    ends = np.cumsum([len(postings) for postings in encoded.parts]).tolist()

    def scores(queries: Sequence[str], places: Sequence[Array]) -> Iterator[Array]:
        packed: Packed = model.encode(queries, "query")
        for number, own in enumerate(places):
            one = packed[number : number + 1]
            assert one.terms is not None
            found = np.empty(len(own), np.float32)
            for postings, first, end in zip(encoded.parts, [0, *ends], ends):
                here = (own >= first) & (own < end)
                found[here] = postings.scores_of(own[here] - first, one.terms.tolist(), one.values)
            yield found

    return scores


SCORERS = {"tokens": _by_vectors, "bits": _by_bits, "sparse": _by_words}
"""By what is stored of passages: the scores of each query's candidates, which are places in `encoded`."""
