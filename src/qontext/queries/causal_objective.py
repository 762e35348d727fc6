"""A decoder-only model that learns to continue a passage with a query that it answers.

    L = − Σ_t log P(q_t | passage, q_<t)        averaged over the tokens of all queries of a batch

The passage is read, not predicted. Sequences are padded on the left, so that all queries end at the same place, and
logits, which have the size of the vocabulary, are computed at the queries' places alone.

Shapes: N pairs of a micro-batch, T tokens of a padded sequence, Q of the longest query, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from qontext.models.packing import Ints, pack_by_tokens
from qontext.queries.pairs import PairPlan, PairRows
from qontext.queries.seq2seq_objective import QueryGeneration
from qontext.training.batch import Output
from qontext.training.randomness import U64
from qontext.training.texts import TokenizedTexts


@dataclass(frozen=True)
class CausalPlan(PairPlan):
    """`passages` are whole sequences: passage, label and query; `queries` are their last tokens alone. Rows hold sequences
    [N, T], padded on the left, and labels [N, Q], which are -100 before the queries.
    """

    def rows(self, pairs: Ints, row_keys: U64, weight: float) -> Iterator[PairRows]:
        for cut in pack_by_tokens(self.passages.length[pairs], None, self.micro_tokens):
            ids, mask = self.passages.pad(pairs[cut], self.pad_id)
            width, lengths = ids.shape[1], torch.from_numpy(self.passages.length[pairs[cut]])
            shifted = (torch.arange(width) + lengths[:, None]) % width
            ids, mask = ids.gather(1, shifted), mask.gather(1, shifted)
            of_queries = torch.from_numpy(self.queries.length[pairs[cut]])
            longest = int(of_queries.max())
            is_before = torch.arange(longest) < longest - of_queries[:, None]
            labels = ids[:, width - longest :].masked_fill(is_before, -100)
            yield PairRows(ids, mask.long(), labels, torch.tensor(weight), row_keys=row_keys[cut])


class CausalGeneration(QueryGeneration):
    """The loss of the queries' tokens, each of which is predicted at the place before it."""

    def forward(self, rows: PairRows) -> Output:
        queries = rows.labels.shape[1]
        logits_NQV = self.model(
            input_ids=rows.ids,
            attention_mask=rows.mask,
            position_ids=(rows.mask.cumsum(1) - 1).clamp(min=0),
            use_cache=False,
            logits_to_keep=queries + 1,  # each token is predicted at the place before it
        ).logits[:, :-1]
        loss = cross_entropy(
            logits_NQV.float().flatten(0, 1),
            rows.labels.flatten(),
            ignore_index=-100,
            reduction="sum",
            label_smoothing=self.label_smoothing if self.training else 0.0,
        )
        return Output({"query": loss * rows.weight})


def as_texts(sequences: Sequence[Sequence[int]]) -> TokenizedTexts:
    """Token ids in flat arrays."""
    lengths = np.array([len(ids) for ids in sequences], np.int64)
    flat = np.concatenate([np.asarray(ids, np.int32) for ids in sequences])
    return TokenizedTexts(flat, lengths.cumsum() - lengths, lengths, np.arange(len(lengths)))
