"""A generator in training: how an architecture reads pairs, computes their loss and writes samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qontext.data.collection import Passage
from qontext.queries.pairs import Pair, PairPlan
from qontext.queries.sampling import Sampler
from qontext.queries.seq2seq_objective import QueryGeneration
from qontext.queries.t5 import Source
from qontext.training.sampler import EpochSampler


@dataclass(frozen=True)
class Shape:
    """What a model sees of a pair: how the passage is written, and how much of either is read."""

    source: Source
    max_passage_tokens: int
    max_query_tokens: int

    def text(self, pair: Pair) -> str:
        return self.source.text(Passage("", pair.title, pair.text, ""))


class Trainable(ABC):
    """A model with its tokenizer. Subclasses know an architecture."""

    def __init__(self, model: Any, tokenizer: Any, shape: Shape) -> None:
        self.model, self.tokenizer, self.shape = model, tokenizer, shape

    @abstractmethod
    def objective(self, label_smoothing: float = 0.0) -> QueryGeneration:
        """The loss of the model."""

    @abstractmethod
    def plan(self, pairs: list[Pair], sampler: EpochSampler, micro_tokens: int) -> PairPlan:
        """The batches of the pairs."""

    @abstractmethod
    def write(self, pairs: Sequence[Pair], sampler: Sampler, dtype: torch.dtype) -> list[str]:
        """One query for each pair's passage; the model is in evaluation mode."""

    def settings(self) -> dict[str, Any]:
        """What `generate` must know, as `generator.json` has it."""
        return {"prefix": self.shape.source.prefix, "with_title": self.shape.source.with_title}

    def samples(self, pairs: Sequence[Pair], seed: int, dtype: torch.dtype) -> list[str]:
        """One query for each pair's passage."""
        training = self.model.training
        self.model.eval()
        sampler = Sampler(samples=1, max_new_tokens=self.shape.max_query_tokens, seed=seed)
        queries = self.write(pairs, sampler, dtype) if pairs else []
        self.model.train(training)
        return queries
