"""MaxSim of the candidates of a run, from what is stored of their tokens: vectors, or bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
from qontext.retrieve.encoded.vectors import prompts_of, representation_of, stored_as
from qontext.retrieve.index.exact import rectangle

Array = np.ndarray[Any, Any]
TEXTS = pa.schema(
    [pa.field("id", pa.string(), nullable=False), pa.field("hash", pa.uint64(), nullable=False)]
)


class TokenScorer:
    """Scores passages by the tokens that `encode` wrote to `path`. `ids` are those of the run's passages, `needed`
    the places of the candidates there."""

    def __init__(
        self, path: str, ids: Array, needed: Array, *, run: str, device: str, precision: Any
    ) -> None:
        artifact = open_artifact(path, verb="encode")
        is_bits = has_bits(artifact)
        if not is_bits and stored_as(artifact) != "tokens":
            raise QontextError(
                f"holds the representation {representation_of(artifact)!r}, not vectors of tokens",
                place=path,
                remedy="Encode with --tokens, or with an encoder of 'qontext finetune --representation tokens'.",
            )
        self.encoded = open_bits(path) if is_bits else open_packed(path)
        artifact.check_content()
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
        self._score = _by_bits(model) if is_bits else _by_vectors(model)
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
        found = (take(self.encoded, self._place[places]) for places in candidates)
        scores = []
        with torch.inference_mode():
            for own in self._score(queries, found):
                scores.append(own)
                advance(len(own))
        return np.concatenate(scores)


def _by_vectors(model: Retriever) -> Any:
    def scores(queries: Sequence[str], found: Iterator[Packed]) -> Iterator[Array]:
        for row, packed in zip(rectangle(model.encode(queries, "query")), found, strict=True):
            passages_PJD = rectangle(packed).to(model.device)
            yield max_similarity(row[None].to(model.device), passages_PJD)[0].cpu().numpy()

    return scores


def _by_bits(retriever: Retriever) -> Any:
    half = retriever.of("query")

    def scores(queries: Sequence[str], found: Iterator[Packed]) -> Iterator[Array]:
        vectors = half.encode_each_token(half.tokenize(queries, "query"))
        for number, packed in enumerate(found):
            yield similarities(vectors[number : number + 1].values, packed)

    return scores
