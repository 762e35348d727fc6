"""Labeled (passage, query) pairs, their batches, and models that learn to write the queries that a passage answers.

    L = − Σ_t log P(q_t | q_<t, passage)        averaged over the tokens of all queries of a batch

A sequence-to-sequence model reads the passage in its encoder. A decoder-only model continues the passage with the query:
the passage is read, not predicted; sequences are padded on the left, so that all queries end at the same place, and
logits, which have the size of the vocabulary, are computed at the queries' places alone.

Shapes: N pairs of a micro-batch, L passage tokens, T tokens of a padded sequence, Q query tokens, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from qontext.data import collection
from qontext.data.collection import Passage
from qontext.frame.errors import QontextError
from qontext.models.batching import Ints, pack_by_tokens
from qontext.models.precision import autocast
from qontext.queries.generators.causal import TRAINED_TAIL, Prompt, read_query
from qontext.queries.generators.sampling import CausalDecoder, LanguageHead, Sampler, draw, end_tokens
from qontext.queries.generators.t5 import CHARACTERS_PER_TOKEN, SourceText, write
from qontext.training.batch import Batch, Output, Rows, TrainableModel
from qontext.training.randomness import U64, EpochSampler, hashed
from qontext.training.texts import TokenizedTexts, tokenize


@dataclass(frozen=True)
class TrainingPair:
    """A passage and a query that it answers; or a question, and what answers it."""

    title: str
    text: str
    query: str


def read_pairs(folders: Sequence[str], split: str) -> list[TrainingPair]:
    """The positive judgments of a split of BEIR folders, in file order."""
    pairs: list[TrainingPair] = []
    for folder in folders:
        labeled = collection.load_collection(folder)
        qrels = labeled.qrels(split)
        queries = labeled.queries(split)
        relevant = {passage for judged in qrels.values() for passage, grade in judged.items() if grade > 0}
        passages = {p.id: p for p in labeled.passages() if p.id in relevant}
        collection.check_qrels(
            qrels, queries, passages.keys() | unwanted(qrels, relevant), Path(folder) / "qrels"
        )
        pairs += [
            TrainingPair(passages[id].title, passages[id].text, queries[query])
            for query, judged in qrels.items()
            for id, grade in judged.items()
            if grade > 0 and passages[id].text.strip()
        ]
    if not pairs:
        raise QontextError(f"the split {split!r} has no positive judgment", place=", ".join(folders))
    return pairs


def unwanted(qrels: collection.Qrels, relevant: set[str]) -> set[str]:
    """Passages that are judged but not relevant to any query: they may be missing."""
    return {passage for judged in qrels.values() for passage in judged} - relevant


@dataclass(frozen=True)
class PairRows(Rows):
    """Padded passages [N, L] and queries [N, Q], labels -100 at padding; `weight` is the weight of a prediction."""

    ids: Tensor
    mask: Tensor
    labels: Tensor
    weight: Tensor

    def scaled(self, shares: Tensor) -> PairRows:
        return replace(self, weight=self.weight * shares[0])


@dataclass(frozen=True)
class PairPlan:
    """The batch of step t, as a pure function of (seed, t): each pair once an epoch."""

    passages: TokenizedTexts
    queries: TokenizedTexts
    sampler: EpochSampler
    micro_tokens: int
    pad_id: int

    def __call__(self, step: int) -> Batch:
        pairs, _, first = self.sampler(step)
        row_keys = hashed(self.sampler.seed, "dropout", step, first + np.arange(len(pairs)))
        predictions = self.predictions(pairs)
        micro = list(self.rows(pairs, row_keys, 1 / predictions))
        return Batch(micro, self.sampler.batch_size, predictions=(float(predictions),))

    def predictions(self, pairs: Ints) -> int:
        """The number of predictions over which the loss of these pairs is averaged."""
        return int(self.queries.length[pairs].sum())

    def rows(self, pairs: Ints, row_keys: U64, weight: float) -> Iterator[PairRows]:
        """The pairs in micro-batches of similar lengths."""
        for cut in pack_by_tokens(self.passages.length[pairs], self.queries.length[pairs], self.micro_tokens):
            ids, mask = self.passages.pad(pairs[cut], self.pad_id)
            labels, _ = self.queries.pad(pairs[cut], -100)
            yield PairRows(ids, mask.long(), labels, torch.tensor(weight), row_keys=row_keys[cut])

    def all(self) -> Iterator[PairRows]:
        """All pairs, each prediction with the same weight."""
        pairs = np.arange(len(self.passages.length))
        yield from self.rows(pairs, np.zeros(len(pairs), np.uint64), 1 / self.predictions(pairs))


def as_texts(sequences: Sequence[Sequence[int]]) -> TokenizedTexts:
    """Token ids in flat arrays."""
    lengths = np.array([len(ids) for ids in sequences], np.int64)
    flat = np.concatenate([np.asarray(ids, np.int32) for ids in sequences])
    return TokenizedTexts(flat, lengths.cumsum() - lengths, lengths, np.arange(len(lengths)))


class QueryGeneration(TrainableModel):
    """The loss of a sequence-to-sequence model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: PairRows) -> Output:
        logits_KV = self.logits(rows).float().flatten(0, 1)
        loss = cross_entropy(logits_KV, rows.labels.flatten(), ignore_index=-100, reduction="sum")
        return Output({"query": loss * rows.weight})

    def logits(self, rows: PairRows) -> Tensor:
        """[N, Q, V]"""
        logits: Tensor = self.model(input_ids=rows.ids, attention_mask=rows.mask, labels=rows.labels).logits
        return logits

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

    def logits(self, rows: PairRows) -> Tensor:
        logits: Tensor = self.model(
            input_ids=rows.ids,
            attention_mask=rows.mask,
            position_ids=(rows.mask.cumsum(1) - 1).clamp(min=0),
            use_cache=False,
            logits_to_keep=rows.labels.shape[1] + 1,  # each token is predicted at the place before it
        ).logits[:, :-1]
        return logits


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

    loss: ClassVar[type[QueryGeneration]] = QueryGeneration

    def __init__(self, model: Any, tokenizer: Any, shape: Shape) -> None:
        self.model, self.tokenizer, self.shape = model, tokenizer, shape

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

    def plan(self, pairs: list[TrainingPair], sampler: EpochSampler, micro_tokens: int) -> PairPlan:
        shape, count = self.shape, len(pairs)
        texts = enumerate(map(shape.text, pairs))
        passages = tokenize(texts, count, self.tokenizer, shape.max_passage_tokens)
        written = enumerate(pair.query for pair in pairs)
        queries = tokenize(written, count, self.tokenizer, shape.max_query_tokens)
        # A decoder has its own start token: the one that the tokenizer puts first is not predicted.
        if (start := self.tokenizer.cls_token_id) is not None:
            doubled = (queries.ids[queries.begin] == start).astype(np.int64)
            queries = replace(queries, begin=queries.begin + doubled, length=queries.length - doubled)
        return PairPlan(passages, queries, sampler, micro_tokens, self.tokenizer.pad_token_id)

    def write(self, pairs: Sequence[TrainingPair], sampler: Sampler, dtype: torch.dtype) -> list[str]:
        texts = [self.shape.text(pair) for pair in pairs]
        ids = self.tokenizer(texts, truncation=True, max_length=self.shape.max_passage_tokens)["input_ids"]
        names = [str(i) for i in range(len(pairs))]
        return [queries[0] for queries in write(self.model, self.tokenizer, ids, names, sampler, dtype)]


class TrainableCausal(Trainable):
    """Llama and its kind."""

    loss = CausalGeneration

    def __init__(self, model: Any, tokenizer: Any, shape: Shape) -> None:
        super().__init__(model, tokenizer, shape)
        self.prompt = Prompt.of_training(tokenizer, TRAINED_TAIL)
        self.end = int(end_tokens(model, torch.device("cpu"))[0])

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
