"""The candidates of a run, scored from what is stored of them: MaxSim of tokens' vectors or bits, or weights of words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from qontext.data import records
from qontext.data.passage import Passage
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.inputs import find
from qontext.models.packed import Packed
from qontext.models.representations.tokens import max_similarity
from qontext.models.retriever import Retriever
from qontext.retrieve.encoded.packed import has_bits, open_bits, open_packed, take
from qontext.retrieve.encoded.reuse import text_hashes
from qontext.retrieve.encoded.token_bits import similarities
from qontext.retrieve.encoded.vectors import Encoded, prompts_of, representation_of, stored_as
from qontext.retrieve.index.exact import rectangle

Array = np.ndarray[Any, Any]
Score: TypeAlias = Callable[[Sequence[str], Sequence[Array]], Iterator[Array]]
TEXTS = pa.schema(
    [pa.field("id", pa.string(), nullable=False), pa.field("hash", pa.uint64(), nullable=False)]
)


class StoredScorer:
    """Scores passages by what `encode` wrote of their tokens to `path`. `ids` are those of the run's passages, `needed`
    the places of the candidates there."""

    def __init__(
        self, path: str, ids: Array, needed: Array, *, run: str, device: str, precision: Any
    ) -> None:
        artifact = open_artifact(path, verb="encode")
        is_bits = has_bits(artifact)
        stored = "bits" if is_bits else stored_as(artifact)
        if stored not in SCORERS:
            raise QontextError(
                f"holds the representation {representation_of(artifact)!r}, not vectors of tokens or weights of words",
                place=path,
                remedy="Encode with --tokens, or with an encoder of 'qontext finetune --representation tokens' or sparse.",
            )
        self.encoded = open_bits(path) if is_bits else open_packed(path)
        own_ids = pa.chunked_array(self.encoded.part_ids, pa.string())
        place = pc.index_in(pa.array(ids, pa.string()), own_ids)
        is_missing = place.take(pa.array(needed)).is_null().to_numpy(zero_copy_only=False)
        if is_missing.any():
            missing = ids[needed[is_missing.argmax()]]
            raise QontextError(
                f"names the passage {missing!r}, which {path} does not hold",
                place=run,
                remedy="Encode the passages that were searched.",
            )
        self._place = place.fill_null(-1).to_numpy()
        remedy = "Restore it, or encode the passages again."
        name = find(self.encoded.encoder, Path(path), "the encoder of the passages", remedy=remedy)
        title = artifact.summary.get("title")
        form: dict[str, Any] = {"device": device, "precision": precision, "title": title}
        form["prompts"] = prompts_of(artifact)
        model = Retriever(name, **form, packed=not is_bits)
        self._score = SCORERS[stored](model, self.encoded)
        self._between = model.titles.between
        self.max_length = artifact.summary["max_length"]

    def check(self, passages: Mapping[str, Passage]) -> None:
        """Refuse a passage that was encoded with another text than this one. `passages` are by id."""
        ids = list(passages)
        texts = [passage.joined(self._between) for passage in passages.values()]
        encoded = pa.concat_tables([records.read_whole(file, TEXTS) for file in self.encoded.id_files])
        places = pc.index_in(pa.array(ids, pa.string()), encoded["id"])
        is_known = places.is_valid().to_numpy(zero_copy_only=False)
        hashes = encoded["hash"].take(places.drop_null()).to_numpy()
        differs = hashes != text_hashes(texts)[is_known]
        if differs.any():
            raise QontextError(
                f"{differs.sum():,} of {len(differs):,} passages had other texts when they were encoded, such as "
                f"{np.array(ids, object)[is_known][differs][0]!r}",
                place=self.encoded.artifact.path,
                remedy="Encode the passages again.",
            )

    def score(
        self, queries: Sequence[str], candidates: Sequence[Array], advance: Callable[[int], None]
    ) -> Array:
        """The scores of each query's candidates, which are places in `ids`, one query after the other."""
        places = [self._place[own] for own in candidates]
        scores = []
        with torch.inference_mode():
            for own in self._score(queries, places):
                scores.append(own)
                advance(len(own))
        return np.concatenate(scores)


def _by_vectors(model: Retriever, encoded: Encoded) -> Score:
    def scores(queries: Sequence[str], places: Sequence[Array]) -> Iterator[Array]:
        for row, own in zip(rectangle(model.encode(queries, "query")), places, strict=True):
            passages_PJD = rectangle(take(encoded, own)).to(model.device)
            yield max_similarity(row[None].to(model.device), passages_PJD)[0].cpu().numpy()

    return scores


def _by_bits(retriever: Retriever, encoded: Encoded) -> Score:
    half = retriever.of("query")

    def scores(queries: Sequence[str], places: Sequence[Array]) -> Iterator[Array]:
        vectors = half.encode_each_token(half.tokenize(queries, "query"))
        for number, own in enumerate(places):
            yield similarities(vectors[number : number + 1].values, take(encoded, own))

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
