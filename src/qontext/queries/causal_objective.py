"""A decoder-only model that learns to continue a passage with a query that it answers.

    L = − Σ_t log P(q_t | passage, q_<t)        averaged over the tokens of all queries of a batch

The passage is read, not predicted. Logits are computed from the place of a micro-batch's first query token on.

Shapes: N pairs of a micro-batch, T tokens of a padded sequence, Q places with logits, V vocabulary.
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
class CausalRows(PairRows):
    """Whole sequences [N, T]; labels [N, T] are -100 outside the queries, the first of which begins at `first`."""

    first: int = 1


@dataclass(frozen=True)
class CausalPlan(PairPlan):
    """`passages` are whole sequences: passage, label and query; `queries` are their last tokens alone."""

    def rows(self, pairs: Ints, row_keys: U64, weight: float) -> Iterator[PairRows]:
        for cut in pack_by_tokens(self.passages.length[pairs], None, self.micro_tokens):
            ids, mask = self.passages.pad(pairs[cut], self.pad_id)
            ends = torch.from_numpy(self.passages.length[pairs[cut]])
            begins = ends - torch.from_numpy(self.queries.length[pairs[cut]])
            place = torch.arange(ids.shape[1])
            is_query = (place >= begins[:, None]) & (place < ends[:, None])
            labels = ids.masked_fill(~is_query, -100)
            yield CausalRows(
                ids, mask.long(), labels, torch.tensor(weight), int(begins.min()), row_keys=row_keys[cut]
            )


class CausalGeneration(QueryGeneration):
    """The loss of the queries' tokens, each of which is predicted at the place before it."""

    def forward(self, rows: PairRows) -> Output:
        assert isinstance(rows, CausalRows)
        places = torch.arange(rows.first - 1, rows.ids.shape[1] - 1, device=rows.ids.device)
        logits_NQV = self.model(
            input_ids=rows.ids, attention_mask=rows.mask, use_cache=False, logits_to_keep=places
        ).logits
        loss = cross_entropy(
            logits_NQV.float().flatten(0, 1),
            rows.labels[:, rows.first :].flatten(),
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
