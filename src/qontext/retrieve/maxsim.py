"""MaxSim of the candidates of a run, from the stored vectors of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.inputs import find
from qontext.models.packed import Packed
from qontext.models.representations.tokens import max_similarity
from qontext.models.representer import Representer
from qontext.retrieve.index.tokens import rectangle
from qontext.retrieve.packed import open_packed
from qontext.retrieve.vectors import representation_of, stored_as

Array = np.ndarray[Any, Any]


class TokenScorer:
    """Scores passages by the token vectors that `encode` wrote to `path`. `ids` are those of the run's passages, `needed`
    the places of the candidates there."""

    def __init__(
        self, path: str, ids: Array, needed: Array, *, run: str, device: str, precision: Any
    ) -> None:
        if stored_as(kind := representation_of(open_artifact(path, verb="encode"))) != "tokens":
            raise QontextError(
                f"holds the representation {kind!r}, not vectors of tokens",
                place=path,
                remedy="Encode with an encoder of 'qontext finetune --representation tokens'.",
            )
        self.encoded = open_packed(path)
        stored = pa.chunked_array(self.encoded.part_ids, pa.string())
        place = pc.index_in(pa.array(ids, pa.string()), stored)
        is_missing = place.take(pa.array(needed)).is_null().to_numpy(zero_copy_only=False)
        if is_missing.any():
            missing = ids[needed[is_missing.argmax()]]
            raise QontextError(f"names the passage {missing!r}, which {path} does not hold", place=run)
        self._place = place.fill_null(-1).to_numpy()
        self._begins = np.cumsum([0, *(len(part) for part in self.encoded.parts)])
        remedy = "Restore it, or encode the passages again."
        name = find(self.encoded.encoder, Path(path), "the encoder of the passages", remedy=remedy)
        self.model = Representer(name, device=device, precision=precision)

    def score(
        self, queries: Sequence[str], candidates: Sequence[Array], advance: Callable[[int], None]
    ) -> Array:
        """The scores of each query's candidates, which are places in `ids`, one query after the other."""
        scores = []
        with torch.inference_mode():
            for row, places in zip(rectangle(self.model.encode(queries, "query")), candidates, strict=True):
                passages_PJD = rectangle(self._take(self._place[places])).to(self.model.device)
                scores.append(max_similarity(row[None].to(self.model.device), passages_PJD)[0].cpu().numpy())
                advance(len(places))
        return np.concatenate(scores)

    def _take(self, places: Array) -> Packed:
        """The vectors of these passages, counted over all parts."""
        order = np.argsort(places, kind="stable")
        part_of = np.searchsorted(self._begins, places[order], side="right") - 1
        parts = [
            self.encoded.parts[part].take(places[order][part_of == part] - self._begins[part])
            for part in np.unique(part_of)
        ]
        return Packed.join(parts).take(np.argsort(order))
