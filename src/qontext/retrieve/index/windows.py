"""Exact search over windows: a passage's score is that of its best window.

Shapes: Q queries, W windows of a block, B passages of a block, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from qontext.models.packed import Packed
from qontext.models.precision import own_device, resolve_device
from qontext.retrieve.index import Array, How, StoredVectors
from qontext.retrieve.index.exact import Best, padded, tensor_over
from qontext.retrieve.packed import Windows

_BLOCK, _QUERIES = 16_384, 1_024


class WindowIndex(StoredVectors):
    """Search over the windows that `encode --window` wrote."""

    def __init__(self, windows: Windows, *, device: str = "auto") -> None:
        self.vectors: Windows = windows
        self.device = resolve_device(device)

    @classmethod
    def open(cls, windows: Windows, how: How) -> WindowIndex:
        return cls(windows, device=own_device(how.device))

    def search(self, queries_QD: Array, k: int, rows: Array | None = None) -> tuple[Array, Array]:
        k = min(k, len(self.vectors) if rows is None else int(rows.sum()))
        if not k or not len(queries_QD):
            return np.empty((len(queries_QD), k), np.int64), np.empty((len(queries_QD), k), np.float32)
        queries = torch.from_numpy(np.ascontiguousarray(queries_QD, np.float32)).to(self.device)
        best = Best(len(queries), k, k, self.device)
        with torch.inference_mode():
            for numbers, packed in self._blocks(rows):
                block_WD = tensor_over(packed.values).to(self.device).float()
                lengths = torch.from_numpy(packed.lengths).to(self.device)
                numbers_B = torch.from_numpy(numbers).to(self.device)
                for start in range(0, len(queries), _QUERIES):
                    some = queries[start : start + _QUERIES]
                    scores_QB = _greatest(some, block_WD, lengths)
                    if not scores_QB.sum().isfinite():
                        self.vectors.check_windows(numbers, packed)
                    best.offer(slice(start, start + len(some)), scores_QB, numbers_B)
                self.advance(len(numbers))
        return best.ranked()

    def _blocks(self, rows: Array | None) -> Iterator[tuple[Array, Packed]]:
        """(numbers [B], their windows), of about a block's size."""
        for numbers, packed in self.vectors.blocks():
            first = 0
            while first < len(packed):
                end = np.searchsorted(packed.starts, packed.starts[first] + _BLOCK, side="right") - 1
                last = max(first + 1, int(end))
                these, windows = numbers[first:last], packed[first:last]
                first = last
                if rows is not None:
                    these, windows = these[rows[these]], windows.take(np.flatnonzero(rows[these]))
                if len(these):
                    yield these, windows


def _greatest(queries_QD: Tensor, block_WD: Tensor, lengths_B: Tensor) -> Tensor:
    """[Q, B] the score of each passage's best window. Both sides are padded, so that equal windows get equal scores."""
    scores_WQ = (padded(block_WD) @ padded(queries_QD, 8).T)[: len(block_WD), : len(queries_QD)]
    greatest_BQ = torch.segment_reduce(scores_WQ.contiguous(), "max", lengths=lengths_B, axis=0)
    return greatest_BQ.T.contiguous()
