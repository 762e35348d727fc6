"""Weights of a passage's own words: the share of its queries that contain a word, estimated by a trained model (DeepCT; Dai
and Callan 2019, section 3, and the released code).

    ŷ_i   = w · h_i + b                         h_i: the last layer at the first token of the passage's word number i
    y_i   = 1 if a query of the passage contains the word i, else 0
    L     = mean over the words of a batch of (y_i − ŷ_i)²
    tf(t) = round(100 · max(0, ŷ_i))            of several occurrences of t, the greatest

The minimum over the queries Q_d of a passage d is at their share |{q ∈ Q_d : t ∈ q}| / |Q_d|, the query term recall that
DeepCT regresses. Words are compared by their stems, and stop words are in no query, as in the released code.

What is generated is one text, the passage's words, each as often as its term frequency; words with none are left out.
`expand --words alone` puts it in the place of the passage, and BM25 counts it. `train-generator --learns terms` trains the
model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field

from qontext.data.collection import Passage
from qontext.data.words import WORD
from qontext.frame.config import ComputeConfig, Input, Options
from qontext.frame.errors import QontextError
from qontext.models.batching import Ints, batches_by_length, pad
from qontext.models.encoder import UNLIMITED
from qontext.models.families import family_of
from qontext.models.folder import locate
from qontext.models.load import load, read_config, require_weights, seeded
from qontext.models.precision import autocast, own_device, resolve_device, resolve_precision
from qontext.models.tokenizer import check_tokenizer, check_vocabulary, load_tokenizer
from qontext.queries.generators import Generator, Task
from qontext.queries.generators.sampling import Sampler
from qontext.queries.generators.t5 import CHARACTERS_PER_TOKEN, SourceText, trained
from qontext.queries.train_generator import QueryTask
from qontext.queries.training import (
    PairPlan,
    PairRows,
    QueryGeneration,
    Shape,
    Trainable,
    TrainingPair,
    as_texts,
)
from qontext.retrieve.analyzer import term_of
from qontext.training.batch import Output
from qontext.training.randomness import EpochSampler

ANALYZER = "english"
"""The analyzer by which words of passages and queries are compared."""
SCALE = 100
"""The term frequency of a word that all queries contain."""
BATCH_TOKENS = 8192
"""Passage tokens per batch, including padding."""


class TermsOptions(Options, ComputeConfig):
    """Read by the generator `terms`."""

    model: Annotated[str, Input()]
    """Output of 'train-generator --learns terms'."""
    max_passage_tokens: Annotated[int, Field(ge=8, le=100_000)] = 384
    """Maximum passage length in tokens; words after it are left out."""


class WordTokens(NamedTuple):
    """The tokens of a text, the words that they reach, and the place of each word's first token."""

    ids: list[int]
    words: list[str]
    places: list[int]


def words_in_tokens(tokenizer: Any, texts: Sequence[str], skip: int, max_tokens: int) -> list[WordTokens]:
    """The words of texts from the character `skip` on, as BM25 splits them, in lower case."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(max_tokens)
    found = []
    for text, encoding in zip(texts, backend.encode_batch(list(texts))):
        own = zip(encoding.offsets, encoding.special_tokens_mask)
        spans = [(place, *span) for place, (span, is_special) in enumerate(own) if not is_special]
        words, places, at = [], [], 0
        for match in WORD.finditer(text, skip):
            while at < len(spans) and spans[at][2] <= match.start():
                at += 1
            if at == len(spans):
                break  # the rest is truncated
            if spans[at][1] < match.end():
                words.append(match[0].lower())
                places.append(spans[at][0])
        found.append(WordTokens(encoding.ids, words, places))
    return found


def frequencies(words: Sequence[str], estimates: Sequence[float]) -> dict[str, int]:
    """The term frequencies of the words that have one."""
    found: dict[str, int] = {}
    for word, estimate in zip(words, estimates):
        if (frequency := round(SCALE * estimate)) > 0:
            found[word] = max(found.get(word, 0), frequency)
    return found


def estimate(model: Any, tokenizer: Any, rows: Sequence[WordTokens], dtype: Any) -> list[list[float]]:
    """The estimates of each row's words."""
    ids, mask = (torch.from_numpy(a) for a in pad([row.ids for row in rows], tokenizer.pad_token_id or 0))
    with torch.inference_mode(), autocast(model.device, dtype):
        inputs = {"input_ids": ids.to(model.device), "attention_mask": mask.long().to(model.device)}
        estimates = model(**inputs).logits[..., 0].float().cpu()
    return [estimates[n, row.places].tolist() for n, row in enumerate(rows)]


class Terms(Generator):
    """A model of the weights of words."""

    Options = TermsOptions
    repeats_passage = True
    model_option = "model"

    def __init__(self, options: TermsOptions, task: Task) -> None:
        from qontext.models.products import use_where_faster

        super().__init__(options, task)
        device = resolve_device(own_device(options.device))
        self.dtype = resolve_precision(options.precision, device)
        model, self.tokenizer, folder, longest = load_terms(options.model)
        if options.max_passage_tokens > longest:
            raise QontextError(
                f"max_passage_tokens = {options.max_passage_tokens}, but the model's limit is {longest} tokens",
                place=options.model,
            )
        self.model = model.eval().to(device)
        use_where_faster(self.model, device, self.dtype, keep=False)
        self.source = SourceText.of(trained(folder))

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        longest = self.options.max_passage_tokens
        texts = [self.source.text(passage)[: longest * CHARACTERS_PER_TOKEN] for passage in passages]
        read = words_in_tokens(self.tokenizer, texts, len(self.source.prefix), longest)
        for rows in batches_by_length(np.array([len(one.ids) for one in read]), BATCH_TOKENS):
            batch = [read[row] for row in rows]
            estimates = estimate(self.model, self.tokenizer, batch, self.dtype)
            for row, one, of_words in zip(rows.tolist(), batch, estimates):
                counted = frequencies(one.words, of_words)
                yield row, [" ".join(word for word, count in counted.items() for _ in range(count))]


def load_terms(name: str, seed: int | None = None) -> tuple[Any, Any, Path, int]:
    """An encoder with one estimate for each token, its tokenizer, its folder, and the maximum length of a text. A missing
    head is initialized from `seed`; without one it is refused."""
    folder = locate(name).transformer
    settings = read_config(folder, num_labels=1)
    family = family_of(settings, name)
    tokenizer = load_tokenizer(folder)
    check_tokenizer(tokenizer, folder, is_masked=family.auto == "AutoModelForMaskedLM")
    more: dict[str, Any] = {"config": settings, "ignore_mismatched_sizes": True}
    with seeded(seed or 0):
        model, missing = load("AutoModelForTokenClassification", folder, "encoder", **more)
    if missing and seed is None:
        raise QontextError(
            f"is no model of the weights of words: it has no weights for {min(missing)}",
            place=name,
            remedy="Train one: qontext train-generator DATA --learns terms --model ENCODER",
        )
    require_weights({key for key in missing if key.startswith(model.base_model_prefix + ".")}, folder)
    check_vocabulary(tokenizer, model.get_input_embeddings().num_embeddings, name)
    positions = getattr(settings.get_text_config(), "max_position_embeddings", None)
    longest = min(int(positions or tokenizer.model_max_length), UNLIMITED)
    return model, tokenizer, folder, longest - family.reserved_positions(settings)


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


class TrainableTerms(Trainable):
    """An encoder with an estimate for each word of a passage."""

    loss = TermRecall

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


class WeighTerms(QueryTask):
    """The task `terms` of `train-generator`."""

    @staticmethod
    def model(config: Any, pairs: Sequence[TrainingPair], shape: Shape) -> Trainable:
        if config.model is None:
            raise QontextError("learns terms needs an encoder", remedy="Name it with --model.")
        model, tokenizer, _, longest = load_terms(config.model, config.seed)
        if config.max_passage_tokens > longest:
            raise QontextError(
                f"max_passage_tokens = {config.max_passage_tokens}, but the encoder's limit is {longest} tokens",
                place=config.model,
            )
        return TrainableTerms(model, tokenizer, shape)
