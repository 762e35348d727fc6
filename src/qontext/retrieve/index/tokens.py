"""Exact search over vectors of tokens: MaxSim of every query with every passage, in blocks of passages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from qontext.frame import log
from qontext.models.batching import batches_by_length
from qontext.models.packed import Packed
from qontext.models.precision import own_device, resolve_device
from qontext.models.representations.tokens import max_similarity
from qontext.retrieve.index import Array, How, Index
from qontext.retrieve.index.exact import Best
from qontext.retrieve.vectors import Encoded

MANY = 10_000_000
"""Vectors from which a search is slow: with 128 dimensions, one query of 32 tokens takes 80 billion operations."""
TOKENS_PER_BLOCK = 16_384


class TokenIndex(Index):
    """Packed vectors in parts; `numbers` are where each part's passages stand in `ids`."""

    reads = "packed"
    tag = "tokens"

    def __init__(self, ids: Array, parts: Sequence[tuple[Array, Packed]], device: str = "auto") -> None:
        self._ids, self.parts, self.device = ids, parts, resolve_device(device)
        if sum(len(packed.values) for _, packed in parts) > MANY:
            log.warn(
                f"Exact search over the tokens of {len(ids):,} passages is slow: rerank the results of another search "
                "with 'qontext rerank RUN --tokens VECTORS' instead."
            )

    @classmethod
    def open(cls, encoded: Encoded, how: How) -> TokenIndex:
        return cls(encoded.ids, list(encoded.blocks()), own_device(how.device))

    @classmethod
    def of(cls, ids: Array, packed: Packed, dimension: int) -> TokenIndex:
        """An index in memory; ids ascend."""
        return cls(ids, [(np.arange(len(ids)), packed)])

    @property
    def ids(self) -> Array:
        return self._ids

    @property
    def dimension(self) -> int:
        return int(self.parts[0][1].values.shape[1])

    def search(self, queries: Packed, k: int, rows: Array | None = None) -> tuple[Array, Array]:
        k = min(k, len(self.ids) if rows is None else int(rows.sum()))
        if not k or not len(queries):
            return np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32)
        queries_QID = rectangle(queries).to(self.device)
        best = Best(len(queries), k, k, self.device)
        with torch.inference_mode():
            for numbers_B, passages_BJD in self._blocks(rows):
                scores_QB = max_similarity(queries_QID, passages_BJD.to(self.device))
                best.offer(slice(None), scores_QB, torch.from_numpy(numbers_B).to(self.device))
                self.advance(len(numbers_B))
        return best.ranked()

    def _blocks(self, rows: Array | None) -> Iterator[tuple[Array, Tensor]]:
        """Passages of similar lengths."""
        for numbers, packed in self.parts:
            allowed = np.arange(len(packed)) if rows is None else np.flatnonzero(rows[numbers])
            for some in batches_by_length(packed.lengths[allowed], TOKENS_PER_BLOCK):
                these = allowed[some]
                yield numbers[these], rectangle(packed.take(these))


def rectangle(packed: Packed) -> Tensor:
    """[N, T, D] in fp32, filled up with zeros."""
    lengths = packed.lengths
    filled = np.zeros((len(packed), int(lengths.max()), packed.values.shape[1]), np.float32)
    filled[np.arange(filled.shape[1]) < lengths[:, None]] = packed.values
    return torch.from_numpy(filled)
