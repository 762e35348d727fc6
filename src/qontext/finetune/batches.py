"""The batch of step t, as a pure function of (seed, t): queries, their passages, micro-batches. Queries and
passages are packed into separate micro-batches, sorted by length, by a token budget, so that queries are not
padded to the length of passages. Every rank has the same number of rows.

Shapes: N rows of a micro-batch, T tokens after padding, M rows of the whole batch, K known positives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qontext.finetune.examples import Examples
from qontext.models.packing import FINE, Grid, Ints, pack_by_tokens
from qontext.training.batch import Batch, Rows, Tensors
from qontext.training.randomness import hashed
from qontext.training.sampler import EpochSampler
from qontext.training.texts import TokenizedTexts


@dataclass(frozen=True)
class Keys(Tensors):
    """Keys of the rows of a batch, [M] each. `query` is the query's position in the whole batch (for a
    passage, that of its query); `known` [M, K] has the text keys of a query's positives, -1 elsewhere;
    `teacher` a passage's score, NaN if it has none.
    """

    is_query: Tensor
    query: Tensor
    is_positive: Tensor
    text: Tensor
    teacher: Tensor
    known: Tensor


@dataclass(frozen=True)
class Texts(Rows):
    """Padded texts of one kind; `mask` is True at real tokens."""

    ids: Tensor
    mask: Tensor
    are_queries: bool = False


@dataclass(frozen=True)
class RetrieverPlan:
    """Everything that determines a batch, besides the step."""

    examples: Examples
    queries: TokenizedTexts
    passages: TokenizedTexts
    sampler: EpochSampler
    per_query: int
    micro_tokens: int
    pad_id: int
    grid: Grid = FINE

    def __call__(self, step: int) -> Batch:
        numbers, epoch, first = self.sampler(step)
        seed = self.sampler.seed
        visits = [self.examples.visit(n, epoch, self.per_query, seed) for n in numbers.tolist()]
        passages = np.concatenate([ids for ids, _ in visits])
        teacher = np.concatenate([scores for _, scores in visits])
        place = first + np.arange(len(numbers))
        query = np.concatenate([place, np.repeat(place, self.per_query)])
        number = np.concatenate([np.zeros_like(place), np.arange(len(passages)) % self.per_query + 1])
        row_keys = hashed(seed, "dropout", step, query, number)
        none = np.full((len(passages), self.examples.known.shape[1]), -1)
        keys = Keys(
            *(
                torch.from_numpy(column)
                for column in (
                    np.repeat([True, False], [len(numbers), len(passages)]),
                    query,
                    number == 1,
                    np.concatenate([np.full(len(numbers), -1), self.passages.key[passages]]),
                    np.concatenate([np.full(len(numbers), np.nan, np.float32), teacher]),
                    np.concatenate([self.examples.known[numbers], none]),
                )
            )
        )
        cuts = [(self.queries, numbers, rows, rows) for rows in self._cut(self.queries, numbers)]
        cuts += [
            (self.passages, passages, rows, rows + len(numbers))
            for rows in self._cut(self.passages, passages)
        ]
        micro = [
            Texts(
                *texts.pad(of[rows], self.pad_id, self.grid),
                texts is self.queries,
                row_keys=row_keys[all_rows],
            )
            for texts, of, rows, all_rows in cuts
        ]
        order = np.concatenate([all_rows for *_, all_rows in cuts])
        return Batch(micro, len(passages) * self.sampler.world, keys[torch.from_numpy(order)])

    def _cut(self, texts: TokenizedTexts, numbers: Ints) -> list[Ints]:
        return pack_by_tokens(texts.length[numbers], None, self.micro_tokens, self.grid)
