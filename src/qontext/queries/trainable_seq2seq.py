"""Training a sequence-to-sequence model: the encoder reads the passage, the decoder writes the query."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qontext.queries.pairs import Pair, PairPlan, tokenize_pairs
from qontext.queries.sampling import Sampler, sample
from qontext.queries.seq2seq_objective import QueryGeneration
from qontext.queries.trainable import Trainable
from qontext.training.sampler import EpochSampler


class TrainableSeq2Seq(Trainable):
    """T5, BART, or a BERT encoder that is used for both halves."""

    def objective(self, label_smoothing: float = 0.0) -> QueryGeneration:
        return QueryGeneration(self.model, label_smoothing)

    def plan(self, pairs: list[Pair], sampler: EpochSampler, micro_tokens: int) -> PairPlan:
        lengths = self.shape.max_passage_tokens, self.shape.max_query_tokens
        passages, queries = tokenize_pairs(self.tokenizer, pairs, self.shape.text, *lengths)
        return PairPlan(passages, queries, sampler, micro_tokens, self.tokenizer.pad_token_id)

    def write(self, pairs: Sequence[Pair], sampler: Sampler, dtype: torch.dtype) -> list[str]:
        device = next(self.model.parameters()).device
        tokens = self.tokenizer(
            [self.shape.text(pair) for pair in pairs],
            truncation=True,
            max_length=self.shape.max_passage_tokens,
            padding=True,
            return_tensors="pt",
        )
        ids, mask = tokens["input_ids"].to(device), tokens["attention_mask"].to(device)
        samples = sample(self.model, ids, mask, [str(i) for i in range(len(pairs))], sampler, dtype)
        return [self.tokenizer.decode(queries[0], skip_special_tokens=True) for queries in samples]
