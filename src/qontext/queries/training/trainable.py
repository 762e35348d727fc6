"""A generator in training: how an architecture reads pairs, computes their loss and writes samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qontext.data.collection import Passage
from qontext.models.precision import autocast
from qontext.queries.generators.causal_prompts import TRAINED_TAIL, Prompt, read_query
from qontext.queries.generators.sampling import CausalDecoder, LanguageHead, Sampler, draw, end_tokens, sample
from qontext.queries.generators.t5 import CHARACTERS_PER_TOKEN, SourceText
from qontext.queries.generators.terms import WordTokens, estimate, frequencies, words_in_tokens
from qontext.queries.training.objectives import (
    CausalGeneration,
    CausalPlan,
    QueryGeneration,
    TermPlan,
    TermRecall,
    as_texts,
    targets,
)
from qontext.queries.training.pairs import PairPlan, TrainingPair, tokenize_pairs
from qontext.training.sampler import EpochSampler


@dataclass(frozen=True)
class Shape:
    """The input format of a pair: how the passage is written, and how much of either is read."""

    source: SourceText
    max_passage_tokens: int
    max_query_tokens: int

    def text(self, pair: TrainingPair) -> str:
        return self.source.text(Passage("", pair.title, pair.text, ""))


class Trainable(ABC):
    """A model with its tokenizer. Subclasses know an architecture."""

    def __init__(self, model: Any, tokenizer: Any, shape: Shape) -> None:
        self.model, self.tokenizer, self.shape = model, tokenizer, shape

    @abstractmethod
    def objective(self, label_smoothing: float = 0.0) -> QueryGeneration:
        """The loss of the model."""

    @abstractmethod
    def plan(self, pairs: list[TrainingPair], sampler: EpochSampler, micro_tokens: int) -> PairPlan:
        """The batches of the pairs."""

    @abstractmethod
    def write(self, pairs: Sequence[TrainingPair], sampler: Sampler, dtype: torch.dtype) -> list[str]:
        """One query for each pair's passage; the model is in evaluation mode."""

    def settings(self) -> dict[str, Any]:
        """The content of `generator.json`, which `generate` reads."""
        return {"prefix": self.shape.source.prefix, "with_title": self.shape.source.with_title}

    def samples(self, pairs: Sequence[TrainingPair], seed: int, dtype: torch.dtype) -> list[str]:
        """One query for each pair's passage."""
        training = self.model.training
        self.model.eval()
        sampler = Sampler(samples=1, max_new_tokens=self.shape.max_query_tokens, seed=seed)
        queries = self.write(pairs, sampler, dtype) if pairs else []
        self.model.train(training)
        return queries


class TrainableSeq2Seq(Trainable):
    """T5, BART, or a BERT encoder that is used for both halves."""

    def objective(self, label_smoothing: float = 0.0) -> QueryGeneration:
        return QueryGeneration(self.model, label_smoothing)

    def plan(self, pairs: list[TrainingPair], sampler: EpochSampler, micro_tokens: int) -> PairPlan:
        lengths = self.shape.max_passage_tokens, self.shape.max_query_tokens
        passages, queries = tokenize_pairs(self.tokenizer, pairs, self.shape.text, *lengths)
        return PairPlan(passages, queries, sampler, micro_tokens, self.tokenizer.pad_token_id)

    def write(self, pairs: Sequence[TrainingPair], sampler: Sampler, dtype: torch.dtype) -> list[str]:
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


class TrainableCausal(Trainable):
    """Llama and its kind."""

    def __init__(self, model: Any, tokenizer: Any, shape: Shape) -> None:
        super().__init__(model, tokenizer, shape)
        self.prompt = Prompt.of_training(tokenizer, TRAINED_TAIL)
        self.end = int(end_tokens(model, torch.device("cpu"))[0])

    def objective(self, label_smoothing: float = 0.0) -> QueryGeneration:
        return CausalGeneration(self.model, label_smoothing)

    def plan(self, pairs: list[TrainingPair], sampler: EpochSampler, micro_tokens: int) -> PairPlan:
        queries = self._queries(pairs)
        prompts = self._prompts(pairs)
        sequences = [[*self.prompt.head, *prompt, *query] for prompt, query in zip(prompts, queries)]
        return CausalPlan(as_texts(sequences), as_texts(queries), sampler, micro_tokens, pad_id=self.end)

    def write(self, pairs: Sequence[TrainingPair], sampler: Sampler, dtype: torch.dtype) -> list[str]:
        device = self.model.device
        with autocast(device, dtype):
            head = LanguageHead(self.model, self.prompt.head)
            decoder = CausalDecoder(self.model, head, self._prompts(pairs))
            ids = [str(i) for i in range(len(pairs))]
            samples = draw(decoder, ids, sampler, end_tokens(self.model, device))
        texts = [self.tokenizer.decode(queries[0], skip_special_tokens=True) for queries in samples]
        return [read_query(text, None) for text in texts]

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "tail": TRAINED_TAIL}

    def _prompts(self, pairs: Sequence[TrainingPair]) -> list[list[int]]:
        longest = self.shape.max_passage_tokens
        texts = [self.shape.text(pair)[: longest * CHARACTERS_PER_TOKEN] for pair in pairs]
        return self.prompt.encode(self.tokenizer, texts, longest)

    def _queries(self, pairs: Sequence[TrainingPair]) -> list[list[int]]:
        """The tokens of the queries, each with the token that ends it."""
        ids = self.tokenizer(
            [f" {pair.query.strip()}" for pair in pairs], add_special_tokens=False, split_special_tokens=True,
            truncation=True, max_length=self.shape.max_query_tokens - 1,
        )["input_ids"]  # fmt: skip
        return [[*query, self.end] for query in ids]


class TrainableTerms(Trainable):
    """An encoder with an estimate for each word of a passage."""

    def objective(self, label_smoothing: float = 0.0) -> QueryGeneration:
        return TermRecall(self.model)

    def plan(self, pairs: list[TrainingPair], sampler: EpochSampler, micro_tokens: int) -> PairPlan:
        read = self._read(pairs)
        labels = [targets(row, pair.query) for row, pair in zip(read, pairs)]
        passages = as_texts([row.ids for row in read])
        return TermPlan(passages, as_texts(labels), sampler, micro_tokens, self.tokenizer.pad_token_id or 0)

    def write(self, pairs: Sequence[TrainingPair], sampler: Sampler, dtype: torch.dtype) -> list[str]:
        read = self._read(pairs)
        counted = map(
            frequencies, (row.words for row in read), estimate(self.model, self.tokenizer, read, dtype)
        )
        return [", ".join(f"{word} {count}" for word, count in of.items()) for of in counted]

    def _read(self, pairs: Sequence[TrainingPair]) -> list[WordTokens]:
        longest = self.shape.max_passage_tokens
        texts = [self.shape.text(pair)[: longest * CHARACTERS_PER_TOKEN] for pair in pairs]
        return words_in_tokens(self.tokenizer, texts, len(self.shape.source.prefix), longest)
