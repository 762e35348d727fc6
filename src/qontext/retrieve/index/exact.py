"""Exact search: a blocked matrix product with the best k of each block kept.

Vectors stay on disk; a block of them at a time is multiplied with all queries, so a corpus larger than memory
works, on CPU and GPU alike. With bf16 or fp16 scoring more than k are kept, and these survivors are scored
again in fp32.

Shapes: Q queries, B passages of a block, D dimensions, C candidates.
"""

from __future__ import annotations

import warnings
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
_GROUP = 16
"""Scores of which only the greatest is looked at first."""
_BLOCK = 16_384


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
        rows = 4_096 if self.device.type != "cpu" else 512
        room = torch.empty((rows, _BLOCK), dtype=self.scoring, device=self.device)
        with torch.inference_mode():
            for numbers_B, block_BD in self._blocks():
                block = _padded(block_BD.to(self.scoring))
                numbers = torch.nn.functional.pad(numbers_B, (0, len(block) - len(numbers_B)), value=-1)
                for start in range(0, len(queries), rows):
                    some = _padded(queries[start : start + rows].to(self.scoring))
                    product = room.view(-1)[: len(some) * len(block)].view(len(some), len(block))
                    torch.mm(some, block.T, out=product)
                    scores_QB = product[: min(rows, len(queries) - start)].float()
                    scores_QB[:, len(numbers_B) :] = -torch.inf
                    best.offer(slice(start, start + len(scores_QB)), scores_QB, numbers)
                self.advance(len(numbers_B))
            if self.scoring == torch.float32:
                return best.ranked()
            return ranked(best.numbers.cpu().numpy(), self._rescored(queries, best), k)

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        for numbers, part in self.vectors.blocks(rank=self.rank, world=self.world):
            for start in range(0, len(part), _BLOCK):
                block = _tensor(part[start : start + _BLOCK]).to(self.device).float()
                yield torch.from_numpy(numbers[start : start + _BLOCK]).to(self.device), block

    def _rescored(self, queries_QD: Tensor, coarse: _Best) -> Array:
        """[Q, C] the survivors' scores in fp32."""
        exact = torch.full_like(coarse.scores, -torch.inf)
        for numbers_B, block_BD in self._blocks():
            row_of = torch.full((len(self.vectors),), -1, dtype=torch.int64, device=self.device)
            row_of[numbers_B] = torch.arange(len(numbers_B), device=self.device)
            rows_QC = torch.where(coarse.numbers >= 0, row_of[coarse.numbers], -1)
            query, place = torch.nonzero(rows_QC >= 0, as_tuple=True)
            for start in range(0, len(query), 65_536):
                q, c = query[start : start + 65_536], place[start : start + 65_536]
                exact[q, c] = (queries_QD[q] * block_BD[rows_QC[q, c]]).sum(1)
        scores: Array = exact.cpu().numpy()
        return scores


class _Best:
    """The best `k` (score, number) pairs of each query so far; of equal scores the smaller number stays."""

    def __init__(self, queries: int, k: int, device: torch.device) -> None:
        self.k = k
        self.scores = torch.full((queries, k), -torch.inf, device=device)
        self.numbers = torch.full((queries, k), -1, dtype=torch.int64, device=device)

    def offer(self, rows: slice, scores_QB: Tensor, numbers_B: Tensor) -> None:
        """Take the best of a block in."""
        old_scores, old_numbers = self.scores[rows], self.numbers[rows]
        queries, width = scores_QB.shape
        # Column c is in group c % groups, so that maxima of groups are maxima of whole rows of memory.
        groups = width // _GROUP if width % _GROUP == 0 else width
        chosen = self._promising(scores_QB.view(queries, -1, groups).amax(1), old_scores)
        if chosen is None:
            return
        everywhere = chosen.unsqueeze(1).expand(-1, width // groups, -1)
        looked_at = scores_QB.view(queries, -1, groups).gather(2, everywhere).flatten(1)
        scores = torch.cat([old_scores, looked_at], 1)
        best, picked = scores.topk(min(self.k + 1, scores.shape[1]))
        new_scores, picked = best[:, : self.k], picked[:, : self.k]
        within = (picked - self.k).clamp(min=0)
        step, group = within // chosen.shape[1], chosen.gather(1, within % chosen.shape[1])
        old = old_numbers.gather(1, picked.clamp(max=self.k - 1))
        new_numbers = torch.where(picked < self.k, old, numbers_B[step * groups + group])
        if best.shape[1] > self.k:
            # Where place k+1 is as good as place k, the numbers decide who is in: of all, not of the promising.
            tied = (best[:, -2] == best[:, -1]) & best[:, -1].isfinite()
            for row in torch.nonzero(tied)[:, 0].tolist():
                every_score = torch.cat([old_scores[row], scores_QB[row]])
                every_number = torch.cat([old_numbers[row], numbers_B])
                chosen_row = _first(every_score, every_number, best[row, -1], self.k)
                new_scores[row], new_numbers[row] = every_score[chosen_row], every_number[chosen_row]
        self.scores[rows], self.numbers[rows] = new_scores, new_numbers

    def _promising(self, greatest: Tensor, old_scores: Tensor) -> Tensor | None:
        """[Q, C] groups that hold all of the new best, by their greatest score ([Q, groups]).

        The k + 1 greatest lie in the k + 1 groups with the greatest maxima, and a group below the worst score so
        far needs no look: after a few blocks hardly one is left.
        """
        hopeful = int((greatest >= old_scores.amin(1, keepdim=True)).sum(1).max().item())
        wanted = min(hopeful, self.k + 1)
        return greatest.topk(wanted, sorted=False).indices if wanted else None

    def ranked(self) -> tuple[Array, Array]:
        return ranked(self.numbers.cpu().numpy(), self.scores.cpu().numpy(), self.k)


def _first(scores: Tensor, numbers: Tensor, least: Tensor, k: int) -> Tensor:
    """Places of the k first by (score, number), where `least` is the last one's score."""
    above, level = torch.nonzero(scores > least)[:, 0], torch.nonzero(scores == least)[:, 0]
    return torch.cat([above, level[numbers[level].argsort()][: k - len(above)]])


def ranked(numbers: Array, scores: Array, k: int) -> tuple[Array, Array]:
    """The best k of each row, best first, ties by number; -1 where there are fewer."""
    order = np.lexsort((numbers, -scores), axis=1)[:, :k]
    return np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)


def _tensor(rows: Array) -> Tensor:
    """A tensor over the memory map itself. torch warns that it must not be written to, which nothing here does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(rows)


def _padded(rows_ND: Tensor) -> Tensor:
    missing = -len(rows_ND) % _MULTIPLE
    return torch.nn.functional.pad(rows_ND, (0, 0, 0, missing)) if missing else rows_ND
