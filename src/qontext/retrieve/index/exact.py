"""Exact search: the scores of all queries with a block of passages at a time, of which the best k are kept.

Vectors stay on disk; a block of them at a time is compared with all queries, so a corpus larger than memory
works, on CPU and GPU alike. With bf16 or fp16 scoring more than k are kept, and these survivors are scored
again in fp32.

    one vector     s(q, p) = <q, p>
    windows        s(q, p) = max_w <q, w>
    tokens         s(q, p) = Σ_i max_j <q_i, p_j>                  (MaxSim)

Shapes: Q queries, B passages of a block, W windows of a block, I and J tokens, D dimensions, C candidates.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from qontext.frame import log
from qontext.models.batching import batches_by_length
from qontext.models.packed import Packed
from qontext.models.precision import own_device, resolve_device
from qontext.models.products import scores
from qontext.models.representations.tokens import max_similarity
from qontext.retrieve.index import Array, How, Index, StoredVectors
from qontext.retrieve.stored import Encoded, Parted, rows_of

_MULTIPLE = 64
"""Blocks are padded to multiples of this, so that every score comes from the same inner loop of the matrix
product: equal passages then get equal scores, wherever they stand."""
_FEW = 8
"""Fewer queries than `_MULTIPLE` are padded to multiples of this: one question costs as much as its rows."""
_GROUP = 16
"""Scores of which only the greatest is looked at first."""
_BLOCK = 16_384
_SCORING = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

Score: TypeAlias = Callable[[Tensor], Tensor]
"""Some of the queries → their scores with a block, [Q, B]; valid until the next call."""


class BlockIndex(Index):
    """Search in blocks of passages."""

    device: torch.device
    width: int | None = 1_024
    """Queries that are compared at a time; None for all."""

    def search(self, queries: Any, k: int, rows: Array | None = None) -> tuple[Array, Array]:
        k = min(k, self.count if rows is None else int(rows.sum()))
        if not k or not len(queries):
            return np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32)
        with torch.inference_mode():
            return self._search(self._tensor(queries), k, rows)

    def _search(self, queries: Tensor, k: int, rows: Array | None) -> tuple[Array, Array]:
        return self._best(queries, k, k, rows).ranked()

    def _tensor(self, queries: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(queries, np.float32)).to(self.device)

    def _best(self, queries: Tensor, size: int, needed: int, rows: Array | None) -> Best:
        """The `size` best passages of each query, of which the first `needed` are in order."""
        best = Best(len(queries), size, needed, self.device)
        width = self.width or len(queries)
        for numbers_B, score in self._blocks(rows):
            for start in range(0, len(queries), width):
                some = queries[start : start + width]
                best.offer(slice(start, start + len(some)), score(some), numbers_B)
        return best

    @abstractmethod
    def _blocks(self, rows: Array | None) -> Iterator[tuple[Tensor, Score]]:
        """([B] numbers of passages, their scores) of each block. The number -1 stands for none."""


class ExactIndex(BlockIndex, StoredVectors):
    """Search over the vectors of passages, or of their windows: a passage's score is then that of its best window."""

    def __init__(
        self, vectors: Parted, *, device: str = "auto", scoring: torch.dtype = torch.float32
    ) -> None:
        self.vectors = vectors
        self.has_windows = isinstance(vectors.parts[0], Packed)
        self.scoring = torch.float32 if self.has_windows else scoring
        self.device = resolve_device(device)
        self.width = 4_096 if self.device.type != "cpu" and not self.has_windows else 1_024

    @classmethod
    def open(cls, vectors: Parted, how: How) -> ExactIndex:
        """The index on the device of `how`."""
        return cls(vectors, device=own_device(how.device), scoring=getattr(torch, _SCORING[how.scoring]))

    def _search(self, queries: Tensor, k: int, rows: Array | None) -> tuple[Array, Array]:
        if self.scoring == torch.float32:
            return super()._search(queries, k, rows)
        count = len(self.vectors) if rows is None else int(rows.sum())
        best = self._best(queries, min(3 * k + 100, count), k, rows)
        return ranked(best.numbers.cpu().numpy(), self._rescored(queries, best, rows), k)

    def _blocks(self, rows: Array | None) -> Iterator[tuple[Tensor, Score]]:
        assert self.width is not None
        room = torch.empty(
            0 if self.has_windows else self.width * _BLOCK, dtype=self.scoring, device=self.device
        )
        for numbers_B, block_WD, lengths_B in self._vectors(rows):
            count = len(numbers_B)
            if lengths_B is not None:
                yield numbers_B, partial(greatest, block_WD=block_WD, lengths_B=lengths_B)
                self.advance(count)
                continue
            block = padded(block_WD.to(self.scoring))

            def score(queries: Tensor, block: Tensor = block, count: int = count) -> Tensor:
                some = padded(queries.to(self.scoring), _FEW if len(queries) < _MULTIPLE else _MULTIPLE)
                product = room[: len(some) * len(block)].view(len(some), len(block))
                scores(some, block, product)
                scores_QB = product[: len(queries)]
                scores_QB[:, count:] = -torch.inf
                return scores_QB

            yield pad(numbers_B, (0, len(block) - count), value=-1), score
            self.advance(count)

    def _vectors(self, rows: Array | None) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """(numbers [B], vectors in fp32, how many each passage has if they are windows) of each block."""
        for numbers, part in self.vectors.blocks():
            last = 0
            while last < len(part):
                begin, last = last, last + _BLOCK
                if isinstance(part, Packed):  # at least one passage, and no more windows than fit
                    end = np.searchsorted(part.starts, part.starts[begin] + _BLOCK, side="right") - 1
                    last = max(begin + 1, int(end))
                these, some = numbers[begin:last], part[begin:last]
                if rows is not None:
                    these, some = these[rows[these]], rows_of(some, np.flatnonzero(rows[these]))
                    if not len(these):
                        continue
                values = some.values if isinstance(some, Packed) else some
                block = tensor_over(values).to(self.device).float()
                if not block.sum().isfinite():  # one pass; a sum may overflow though its terms are finite
                    self.vectors.check_rows(these, some)
                lengths = torch.from_numpy(some.lengths).to(self.device) if isinstance(some, Packed) else None
                yield tensor_over(these).to(self.device), block, lengths

    def _rescored(self, queries_QD: Tensor, coarse: Best, rows: Array | None) -> Array:
        """[Q, C] the survivors' scores in fp32. The number -1 stands for none."""
        numbers, entries = coarse.numbers.flatten().sort()
        exact = torch.full_like(coarse.scores, -torch.inf)
        for numbers_B, block_BD, _ in self._vectors(rows):
            first = torch.searchsorted(numbers, numbers_B)
            count = torch.searchsorted(numbers, numbers_B, right=True) - first
            passage = torch.repeat_interleave(count)  # of each entry whose passage is in the block
            place = (
                torch.arange(len(passage), device=self.device) + (first - (count.cumsum(0) - count))[passage]
            )
            here, order = entries[place].sort()
            query = here // exact.shape[1]
            exact.view(-1)[here] = _dots(queries_QD, block_BD, query, passage[order])
        rescored: Array = exact.cpu().numpy()
        return rescored


def greatest(queries_QD: Tensor, block_WD: Tensor, lengths_B: Tensor) -> Tensor:
    """[Q, B] the score of each passage's best vector. Both sides are padded, so that equal windows get equal scores."""
    scores_WQ = (padded(block_WD) @ padded(queries_QD, 8).T)[: len(block_WD), : len(queries_QD)]
    greatest_BQ = torch.segment_reduce(scores_WQ.contiguous(), "max", lengths=lengths_B, axis=0)
    return greatest_BQ.T.contiguous()


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


MANY = 10_000_000
"""Vectors from which a search is slow: with 128 dimensions, one query of 32 tokens takes 80 billion operations."""
TOKENS_PER_BLOCK = 16_384


class TokenIndex(BlockIndex):
    """Packed vectors in parts; `numbers` are where each part's passages stand in `ids`."""

    reads = "packed"
    tag = "tokens"
    width = None

    def __init__(self, ids: Array, parts: Sequence[tuple[Array, Packed]], device: str = "auto") -> None:
        self._ids, self.parts, self.device = ids, parts, resolve_device(device)
        if sum(len(packed.values) for _, packed in parts) > MANY:
            log.warn(
                f"Exact search over the tokens of {len(ids):,} passages is slow: search an index ('qontext index VECTORS "
                "--backend residual'), or rerank the results of another search ('qontext rerank RUN --tokens VECTORS')."
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

    def _tensor(self, queries: Packed) -> Tensor:
        return rectangle(queries).to(self.device)

    def _blocks(self, rows: Array | None) -> Iterator[tuple[Tensor, Score]]:
        """Passages of similar lengths."""
        for numbers, packed in self.parts:
            allowed = np.arange(len(packed)) if rows is None else np.flatnonzero(rows[numbers])
            for some in batches_by_length(packed.lengths[allowed], TOKENS_PER_BLOCK):
                these = allowed[some]
                passages_BJD = rectangle(packed.take(these)).to(self.device)
                numbers_B = torch.from_numpy(numbers[these]).to(self.device)
                yield numbers_B, partial(max_similarity, passages_PJD=passages_BJD)
                self.advance(len(these))


def rectangle(packed: Packed) -> Tensor:
    """[N, T, D] in fp32, filled up with zeros."""
    lengths = packed.lengths
    filled = np.zeros((len(packed), int(lengths.max()), packed.values.shape[1]), np.float32)
    filled[np.arange(filled.shape[1]) < lengths[:, None]] = packed.values
    return torch.from_numpy(filled)
