"""The losses of models that learn to generate the queries that a passage answers, or to estimate which of its words they
contain.

    L = − Σ_t log P(q_t | q_<t, passage)        averaged over the tokens of all queries of a batch

A sequence-to-sequence model reads the passage in its encoder. A decoder-only model continues the passage with the query:
the passage is read, not predicted; sequences are padded on the left, so that all queries end at the same place, and
logits, which have the size of the vocabulary, are computed at the queries' places alone.

DeepCT (Dai and Callan 2019, section 3.1), for the words i of a passage and a query of it:

    y_i = 1 if the query contains the word i, else 0
    ŷ_i = w · h_i + b                                   h_i: the last layer at the word's first token
    L   = mean over the words of a batch of (y_i − ŷ_i)²

The minimum over the queries Q_d of a passage d is at their share |{q ∈ Q_d : t ∈ q}| / |Q_d|, the query term recall that
DeepCT regresses. Words are compared by their stems, and stop words are in no query, as in the released code.

Shapes: N pairs of a micro-batch, T tokens of a padded sequence, Q of the longest query, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from qontext.data.words import WORD
from qontext.models.batching import Ints, pack_by_tokens
from qontext.models.precision import autocast
from qontext.queries.generators.terms import WordTokens
from qontext.queries.training.pairs import PairPlan, PairRows
from qontext.retrieve.analyzer import term_of
from qontext.training.batch import Output, TrainableModel
from qontext.training.randomness import U64
from qontext.training.texts import TokenizedTexts

ANALYZER = "english"
"""The analyzer by which words of passages and queries are compared."""


class QueryGeneration(TrainableModel):
    """The loss of a sequence-to-sequence model. `label_smoothing` is the share of the target distribution that is spread
    over all tokens, in training only.
    """

    def __init__(self, model: Any, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(self, rows: PairRows) -> Output:
        logits_NQV = self.model(input_ids=rows.ids, attention_mask=rows.mask, labels=rows.labels).logits
        loss = cross_entropy(
            logits_NQV.float().flatten(0, 1),
            rows.labels.flatten(),
            ignore_index=-100,
            reduction="sum",
            label_smoothing=self.label_smoothing if self.training else 0.0,
        )
        return Output({"query": loss * rows.weight})

    @torch.inference_mode()
    def loss(self, plan: PairPlan, device: torch.device, dtype: torch.dtype) -> float:
        """The mean over all predictions of `plan`."""
        training = self.training
        self.eval()
        with autocast(device, dtype):
            total = sum(sum(self(rows.to(device)).losses.values()).item() for rows in plan.all())
        self.train(training)
        return float(total)


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
    """The loss of a decoder-only model: each token of a query is predicted at the place before it."""

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


def targets(passage: WordTokens, query: str) -> list[int]:
    """1 or 0 at the first token of each word, -100 elsewhere."""
    term = term_of(ANALYZER)
    asked = {term(word) for word in WORD.findall(query.lower())} - {""}
    labels = [-100] * len(passage.ids)
    for word, place in zip(passage.words, passage.places):
        labels[place] = int(term(word) in asked)
    return labels


@dataclass(frozen=True)
class TermPlan(PairPlan):
    """`queries` are the targets of the passages' tokens."""

    def predictions(self, pairs: Ints) -> int:
        texts = self.queries
        spans = zip(texts.begin[pairs].tolist(), texts.length[pairs].tolist())
        return max(1, sum(int(np.count_nonzero(texts.ids[at : at + n] >= 0)) for at, n in spans))


class TermRecall(QueryGeneration):
    """The squared error of a token classifier with one output."""

    def forward(self, rows: PairRows) -> Output:
        estimates_NL = self.model(input_ids=rows.ids, attention_mask=rows.mask).logits[..., 0].float()
        errors_NL = (estimates_NL - rows.labels).square()
        return Output({"terms": errors_NL[rows.labels >= 0].sum() * rows.weight})
