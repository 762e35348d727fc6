"""Exact search: a blocked matrix product with the best k of each block kept.

Vectors stay on disk; a block of them at a time is multiplied with all queries, so a corpus larger than memory
works, on CPU and GPU alike. With bf16 or fp16 scoring more than k are kept, and these survivors are scored
again in fp32.

Shapes: Q queries, B passages of a block, D dimensions, C candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from qontext.engine.precision import resolve_device
from qontext.retrieve.index import Array
from qontext.retrieve.vectors import Vectors

_MULTIPLE = 64
"""Blocks are padded to multiples of this, so that every score comes from the same inner loop of the matrix
product: equal passages then get equal scores, wherever they stand."""


class ExactIndex:
    """Search over an `encode` artifact, or over its parts that fall to one rank."""

    def __init__(
        self,
        vectors: Vectors,
        *,
        device: str = "auto",
        scoring: torch.dtype = torch.float32,
        rank: int = 0,
        world: int = 1,
        advance: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self.vectors, self.scoring, self.advance = vectors, scoring, advance
        self.device = resolve_device(device)
        self.rank, self.world = rank, world

    @property
    def dimension(self) -> int:
        return self.vectors.dimension

    @property
    def ids(self) -> Array:
        return self.vectors.ids

    def search(self, queries_QD: Array, k: int) -> tuple[Array, Array]:
        k = min(k, len(self.vectors))
        kept = k if self.scoring == torch.float32 else min(3 * k + 100, len(self.vectors))
        queries = torch.from_numpy(np.ascontiguousarray(queries_QD, np.float32)).to(self.device)
        best = _Best(len(queries), kept, self.device)
        rows = 4_096 if self.device.type != "cpu" else 256
        with torch.inference_mode():
            for numbers_B, block_BD in self._blocks():
                block = _padded(block_BD.to(self.scoring))
                for start in range(0, len(queries), rows):
                    some = _padded(queries[start : start + rows].to(self.scoring))
                    scores_QB = (some @ block.T)[: min(rows, len(queries) - start), : len(numbers_B)].float()
                    best.offer(slice(start, start + rows), scores_QB, numbers_B)
                self.advance(len(numbers_B))
            if self.scoring != torch.float32:
                best = self._rescored(queries, best, k)
        return best.ranked()

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        for numbers, part in self.vectors.blocks(rank=self.rank, world=self.world):
            for start in range(0, len(part), 16_384):
                # A copy, because a tensor over a read-only map would be writable.
                block = torch.from_numpy(np.array(part[start : start + 16_384]))
                yield (
                    torch.from_numpy(numbers[start : start + 16_384]).to(self.device),
                    block.to(self.device).float(),
                )

    def _rescored(self, queries_QD: Tensor, coarse: _Best, k: int) -> _Best:
        """The survivors' exact scores, the best k of them."""
        exact = torch.full_like(coarse.scores, -torch.inf)
        for numbers_B, block_BD in self._blocks():
            row_of = torch.full((len(self.vectors),), -1, dtype=torch.int64, device=self.device)
            row_of[numbers_B] = torch.arange(len(numbers_B), device=self.device)
            rows_QC = torch.where(coarse.numbers >= 0, row_of[coarse.numbers], -1)
            query, place = torch.nonzero(rows_QC >= 0, as_tuple=True)
            for start in range(0, len(query), 65_536):
                q, c = query[start : start + 65_536], place[start : start + 65_536]
                exact[q, c] = (queries_QD[q] * block_BD[rows_QC[q, c]]).sum(1)
        best = _Best(len(queries_QD), k, self.device)
        best.offer(slice(None), exact, coarse.numbers)
        return best


class _Best:
    """The best `k` (score, number) pairs of each query so far; of equal scores the smaller number stays."""

    def __init__(self, queries: int, k: int, device: torch.device) -> None:
        self.k = k
        self.scores = torch.full((queries, k), -torch.inf, device=device)
        self.numbers = torch.full((queries, k), -1, dtype=torch.int64, device=device)

    def offer(self, rows: slice, scores_QB: Tensor, numbers: Tensor) -> None:
        """Take the best of a block in; `numbers` is [B], or [Q, B]."""
        scores, numbers = _top(scores_QB, numbers.expand(scores_QB.shape), self.k)
        scores = torch.cat([self.scores[rows], scores], 1)
        numbers = torch.cat([self.numbers[rows], numbers], 1)
        self.scores[rows], self.numbers[rows] = _top(scores, numbers, self.k)

    def ranked(self) -> tuple[Array, Array]:
        scores, numbers = self.scores.cpu().numpy(), self.numbers.cpu().numpy()
        order = np.lexsort((numbers, -scores), axis=1)
        return np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)


def _top(scores_QB: Tensor, numbers_QB: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k greatest of each row (in no order), of equal ones those with the smaller number."""
    width = scores_QB.shape[1]
    if width <= k:
        return scores_QB, numbers_QB
    values, places = _greatest(scores_QB, k + 1)
    numbers = numbers_QB.gather(1, places[:, :k])
    # Where place k+1 is as good as place k, the numbers decide who is in.
    for row in torch.nonzero(values[:, k - 1] == values[:, k])[:, 0].tolist():
        if torch.isneginf(values[row, k]):
            continue
        least = values[row, k]
        above = torch.nonzero(scores_QB[row] > least)[:, 0]
        level = torch.nonzero(scores_QB[row] == least)[:, 0]
        level = level[numbers_QB[row, level].argsort()][: k - len(above)]
        chosen = torch.cat([above, level])
        values[row, :k], numbers[row] = scores_QB[row, chosen], numbers_QB[row, chosen]
    return values[:, :k], numbers


def _greatest(scores_QB: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk, faster for long rows: the k greatest lie in the k groups with the greatest maxima."""
    rows, width = scores_QB.shape
    group = 2 ** int(math.log2(max(1.0, math.sqrt(width / k))))
    groups = width // group
    if group < 4 or groups <= k:
        found = scores_QB.topk(k)
        return found.values, found.indices
    even = scores_QB[:, : groups * group].reshape(rows, groups, group)
    chosen = even.amax(2).topk(k, sorted=False).indices  # [rows, k]
    places = (chosen.unsqueeze(2) * group + torch.arange(group, device=scores_QB.device)).flatten(1)
    rest = torch.arange(groups * group, width, device=scores_QB.device).expand(rows, -1)
    places = torch.cat([places, rest], 1)
    found = scores_QB.gather(1, places).topk(k)
    return found.values, places.gather(1, found.indices)


def _padded(rows_ND: Tensor) -> Tensor:
    return torch.nn.functional.pad(rows_ND, (0, 0, 0, -len(rows_ND) % _MULTIPLE))
