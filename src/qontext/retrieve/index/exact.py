"""Exact search: a blocked matrix product with the best k of each block kept.

Vectors stay on disk; a block of them at a time is multiplied with all queries, so a corpus larger than memory
works, on CPU and GPU alike. With bf16 or fp16 scoring more than k are kept, and these survivors are scored
again in fp32.

Shapes: Q queries, B passages of a block, D dimensions, C candidates.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from qontext.models.precision import own_device, resolve_device
from qontext.models.products import scores
from qontext.retrieve.index import Array, How, StoredVectors
from qontext.retrieve.vectors import Vectors

_MULTIPLE = 64
"""Blocks are padded to multiples of this, so that every score comes from the same inner loop of the matrix
product: equal passages then get equal scores, wherever they stand."""
_FEW = 8
"""Fewer queries than `_MULTIPLE` are padded to multiples of this: one question costs as much as its rows."""
_GROUP = 16
"""Scores of which only the greatest is looked at first."""
_BLOCK = 16_384


class ExactIndex(StoredVectors):
    """Search over an `encode` artifact."""

    def __init__(
        self,
        vectors: Vectors,
        *,
        device: str = "auto",
        scoring: torch.dtype = torch.float32,
    ) -> None:
        self.vectors, self.scoring = vectors, scoring
        self.device = resolve_device(device)

    @classmethod
    def open(cls, vectors: Vectors, how: How) -> ExactIndex:
        scoring = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[how.scoring]
        return cls(vectors, device=own_device(how.device), scoring=scoring)

    def search(self, queries_QD: Array, k: int, rows: Array | None = None) -> tuple[Array, Array]:
        count = len(self.vectors) if rows is None else int(rows.sum())
        k = min(k, count)
        if not k or not len(queries_QD):
            return np.empty((len(queries_QD), k), np.int64), np.empty((len(queries_QD), k), np.float32)
        size = k if self.scoring == torch.float32 else min(3 * k + 100, count)
        queries = torch.from_numpy(np.ascontiguousarray(queries_QD, np.float32)).to(self.device)
        best = Best(len(queries), size, k, self.device)
        width = 4_096 if self.device.type != "cpu" else 1_024
        room = torch.empty(width * _BLOCK, dtype=self.scoring, device=self.device)
        with torch.inference_mode():
            for numbers_B, block_BD in self._blocks(rows):
                block = padded(block_BD.to(self.scoring))
                numbers = pad(numbers_B, (0, len(block) - len(numbers_B)), value=-1)
                for start in range(0, len(queries), width):
                    some = queries[start : start + width].to(self.scoring)
                    some = padded(some, _FEW if len(some) < _MULTIPLE else _MULTIPLE)
                    product = room[: len(some) * len(block)].view(len(some), len(block))
                    scores(some, block, product)
                    scores_QB = product[: min(width, len(queries) - start)]
                    scores_QB[:, len(numbers_B) :] = -torch.inf
                    best.offer(slice(start, start + len(scores_QB)), scores_QB, numbers)
                self.advance(len(numbers_B))
            if self.scoring == torch.float32:
                return best.ranked()
            return ranked(best.numbers.cpu().numpy(), self._rescored(queries, best, rows), k)

    def _blocks(self, rows: Array | None) -> Iterator[tuple[Tensor, Tensor]]:
        for numbers, part in self.vectors.blocks():
            for start in range(0, len(part), _BLOCK):
                these, vectors = numbers[start : start + _BLOCK], part[start : start + _BLOCK]
                if rows is not None:
                    these, vectors = these[rows[these]], vectors[rows[these]]
                    if not len(these):
                        continue
                block = tensor_over(vectors).to(self.device).float()
                if not block.sum().isfinite():  # one pass; a sum may overflow though its terms are finite
                    self.vectors.check_rows(these, block.isfinite().all(1).cpu().numpy())
                yield tensor_over(these).to(self.device), block

    def _rescored(self, queries_QD: Tensor, coarse: Best, rows: Array | None) -> Array:
        """[Q, C] the survivors' scores in fp32. The number -1 stands for none."""
        numbers, entries = coarse.numbers.flatten().sort()
        exact = torch.full_like(coarse.scores, -torch.inf)
        for numbers_B, block_BD in self._blocks(rows):
            first = torch.searchsorted(numbers, numbers_B)
            count = torch.searchsorted(numbers, numbers_B, right=True) - first
            passage = torch.repeat_interleave(count)  # of each entry whose passage is in the block
            place = (
                torch.arange(len(passage), device=self.device) + (first - (count.cumsum(0) - count))[passage]
            )
            here, order = entries[place].sort()
            query = here // exact.shape[1]
            exact.view(-1)[here] = _dots(queries_QD, block_BD, query, passage[order])
        scores: Array = exact.cpu().numpy()
        return scores


class Best:
    """The best `k` (score, number) pairs of each query so far; of equal scores the smaller number stays.

    Where the scores are not the last word, equal ones are put in order only if they are as good as place `needed`: few
    bits make many of them.
    """

    def __init__(self, queries: int, k: int, needed: int, device: torch.device) -> None:
        self.k, self.needed = k, needed
        self.scores = torch.full((queries, k), -torch.inf, device=device)
        self.numbers = torch.full((queries, k), -1, dtype=torch.int64, device=device)

    def offer(self, rows: slice, scores_QB: Tensor, numbers_B: Tensor) -> None:
        """Take the best of a block in."""
        old_scores, old_numbers = self.scores[rows], self.numbers[rows]
        scores, numbers = self._promising(scores_QB, numbers_B, old_scores.amin(1, keepdim=True))
        if not scores.shape[1]:
            return
        scores, numbers = torch.cat([old_scores, scores], 1), torch.cat([old_numbers, numbers], 1)
        best, picked = scores.topk(min(self.k + 1, scores.shape[1]))
        new_scores, new_numbers = best[:, : self.k], numbers.gather(1, picked[:, : self.k])
        if best.shape[1] > self.k:
            # Where place k+1 is as good as place k, the numbers decide who is in.
            tied = (best[:, self.needed - 1] == best[:, -1]) & best[:, -1].isfinite()
            for row in torch.nonzero(tied)[:, 0].tolist():
                first = _first(scores[row], numbers[row], best[row, -1], self.k)
                new_scores[row], new_numbers[row] = scores[row, first], numbers[row, first]
        self.scores[rows], self.numbers[rows] = new_scores, new_numbers

    def _promising(self, scores_QB: Tensor, numbers_B: Tensor, least_Q1: Tensor) -> tuple[Tensor, Tensor]:
        """All scores of the block that may be among the best k, in fp32, and their numbers: [Q, C], filled up with -inf.

        These are at least the worst so far (`least_Q1`), and at least the k-th greatest maximum of a group. After a
        few blocks hardly one is.
        """
        queries, width = scores_QB.shape
        if width % _GROUP or width // _GROUP < self.k:
            return scores_QB.float(), numbers_B.expand_as(scores_QB)
        # Column c is in group c % groups, so that maxima of groups are maxima of whole rows of memory.
        grouped = scores_QB.view(queries, _GROUP, -1)
        greatest = grouped.amax(1).float()
        hopeful = torch.nonzero((greatest >= least_Q1).flatten())[:, 0] if least_Q1.isfinite().all() else None
        if hopeful is None or len(hopeful) > queries * self.k:
            least_Q1 = torch.maximum(least_Q1, greatest.topk(self.k).values[:, -1:])
            hopeful = torch.nonzero((greatest >= least_Q1).flatten())[:, 0]
        query, group = hopeful // greatest.shape[1], hopeful % greatest.shape[1]
        members = grouped[query, :, group].float()
        entry, step = torch.nonzero(members >= least_Q1[query], as_tuple=True)
        query = query[entry]
        counts = query.bincount(minlength=queries)
        place = torch.arange(len(query), device=query.device) - (counts.cumsum(0) - counts)[query]
        shape = (queries, int(counts.max()))
        scores = torch.full(shape, -torch.inf, device=query.device)
        numbers = torch.full(shape, -1, dtype=torch.int64, device=query.device)
        scores[query, place] = members[entry, step]
        numbers[query, place] = numbers_B[step * grouped.shape[2] + group[entry]]
        return scores, numbers

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


def _dots(queries_QD: Tensor, passages_BD: Tensor, query_N: Tensor, passage_N: Tensor) -> Tensor:
    """[N] the scores of single pairs in fp32; the queries' numbers ascend."""
    if queries_QD.device.type != "cpu":
        pairs = zip(query_N.split(65_536), passage_N.split(65_536))
        return torch.cat(
            [queries_QD.new_empty(0), *((queries_QD[q] * passages_BD[p]).sum(1) for q, p in pairs)]
        )
    # As samples of the whole product: more than twenty times as fast as with copies of the rows.
    begin = pad(query_N.bincount(minlength=len(queries_QD)).cumsum(0), (1, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that sparse tensors are in beta
        pattern = torch.sparse_csr_tensor(
            begin, passage_N, torch.zeros(len(passage_N)), (len(queries_QD), len(passages_BD))
        )
        sampled: Tensor = torch.sparse.sampled_addmm(pattern, queries_QD, passages_BD.T, beta=0.0)
    return sampled.values()


def tensor_over(rows: Array) -> Tensor:
    """A tensor over the memory map itself. torch warns that it must not be written to, which nothing here does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(rows)


def padded(rows_ND: Tensor, multiple: int = _MULTIPLE) -> Tensor:
    missing = -len(rows_ND) % multiple
    return pad(rows_ND, (0, 0, 0, missing)) if missing else rows_ND
