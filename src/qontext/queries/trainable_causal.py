"""Training a decoder-only model: it reads the passage and a label, and continues with the query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from qontext.models.precision import autocast
from qontext.queries.causal_objective import CausalGeneration, CausalPlan, as_texts
from qontext.queries.causal_prompts import TRAINED_TAIL, Prompt, read_query
from qontext.queries.continuation import Continuation, Head
from qontext.queries.pairs import Pair, PairPlan
from qontext.queries.sampling import Sampler, draw, end_tokens
from qontext.queries.seq2seq_objective import QueryGeneration
from qontext.queries.t5 import CHARACTERS_PER_TOKEN
from qontext.queries.trainable import Shape, Trainable
from qontext.training.sampler import EpochSampler


class TrainableCausal(Trainable):
    """Llama and its kind."""

    def __init__(self, model: Any, tokenizer: Any, shape: Shape) -> None:
        super().__init__(model, tokenizer, shape)
        self.prompt = Prompt.of_training(tokenizer, TRAINED_TAIL)
        self.end = int(end_tokens(model, torch.device("cpu"))[0])

    def objective(self, label_smoothing: float = 0.0) -> QueryGeneration:
        return CausalGeneration(self.model, label_smoothing)

    def plan(self, pairs: list[Pair], sampler: EpochSampler, micro_tokens: int) -> PairPlan:
        queries = self._queries(pairs)
        prompts = self._prompts(pairs)
        sequences = [[*self.prompt.head, *prompt, *query] for prompt, query in zip(prompts, queries)]
        return CausalPlan(as_texts(sequences), as_texts(queries), sampler, micro_tokens, pad_id=self.end)

    def write(self, pairs: Sequence[Pair], sampler: Sampler, dtype: torch.dtype) -> list[str]:
        device = self.model.device
        with autocast(device, dtype):
            head = Head(self.model, self.prompt.head)
            decoder = Continuation(self.model, head, self._prompts(pairs))
            ids = [str(i) for i in range(len(pairs))]
            samples = draw(decoder, ids, sampler, end_tokens(self.model, device))
        texts = [self.tokenizer.decode(queries[0], skip_special_tokens=True) for queries in samples]
        return [read_query(text, None) for text in texts]

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "tail": TRAINED_TAIL}

    def _prompts(self, pairs: Sequence[Pair]) -> list[list[int]]:
        longest = self.shape.max_passage_tokens
        texts = [self.shape.text(pair)[: longest * CHARACTERS_PER_TOKEN] for pair in pairs]
        return self.prompt.encode(self.tokenizer, texts, longest)

    def _queries(self, pairs: Sequence[Pair]) -> list[list[int]]:
        """The tokens of the queries, each with the token that ends it."""
        ids = self.tokenizer(
            [f" {pair.query.strip()}" for pair in pairs], add_special_tokens=False, split_special_tokens=True,
            truncation=True, max_length=self.shape.max_query_tokens - 1,
        )["input_ids"]  # fmt: skip
        return [[*query, self.end] for query in ids]
