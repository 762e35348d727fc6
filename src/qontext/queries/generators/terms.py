"""Weights of a passage's own words: the share of its queries that contain a word, estimated by a trained model (DeepCT).

    ŷ_i   = w · h_i + b                         h_i: the last layer at the first token of the passage's word number i
    tf(t) = round(100 · max(0, ŷ_i))            of several occurrences of t, the greatest

What is generated is one text, the passage's words, each as often as its term frequency; words with none are left out.
`expand --words alone` puts it in the place of the passage, and BM25 counts it. `train-generator --learns terms` trains the
model. Dai and Callan 2019, section 3, and the released code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, model_validator

from qontext.data.collection import Passage
from qontext.data.words import WORD
from qontext.frame.config import ComputeConfig, Input, Options
from qontext.frame.errors import QontextError
from qontext.queries.generators import Generator, Task
from qontext.queries.generators.t5 import CHARACTERS_PER_TOKEN, SourceText

SCALE = 100
"""The term frequency of a word that all queries contain."""


class TermsOptions(Options, ComputeConfig):
    """Read by the generator `terms`."""

    model: Annotated[str | None, Input()] = None
    """Output of 'train-generator --learns terms'. Required."""
    max_passage_tokens: Annotated[int, Field(ge=8, le=100_000)] = 384
    """Maximum passage length in tokens; words after it are left out."""
    batch_tokens: Annotated[int, Field(ge=1)] = 8192
    """Passage tokens per batch, including padding."""

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        if not self.model:
            raise QontextError(
                "the generator 'terms' needs a model",
                remedy="Add --model with the output of: qontext train-generator --learns terms",
            )
        return self


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
    import torch

    from qontext.models.batching import pad
    from qontext.models.precision import autocast

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

    def __init__(self, settings: TermsOptions) -> None:
        from qontext.models.precision import own_device, resolve_device, resolve_precision
        from qontext.models.products import use_where_faster
        from qontext.queries.training.new_model import load_terms

        assert settings.model is not None, "checked by the options"
        self.settings = settings
        device = resolve_device(own_device(settings.device))
        self.dtype = resolve_precision(settings.precision, device)
        model, self.tokenizer, folder, longest = load_terms(settings.model)
        if settings.max_passage_tokens > longest:
            raise QontextError(
                f"max_passage_tokens = {settings.max_passage_tokens}, but the model's limit is {longest} tokens",
                place=settings.model,
            )
        self.model = model.eval().to(device)
        use_where_faster(self.model, device, self.dtype, keep=False)
        self.source = SourceText.in_folder(folder)
        self.tally: Counter[str] = Counter()

    @classmethod
    def open(cls, options: TermsOptions, task: Task) -> Terms:
        return cls(options)

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        import numpy as np

        from qontext.models.batching import batches_by_length

        longest = self.settings.max_passage_tokens
        texts = [self.source.text(passage)[: longest * CHARACTERS_PER_TOKEN] for passage in passages]
        read = words_in_tokens(self.tokenizer, texts, len(self.source.prefix), longest)
        for rows in batches_by_length(np.array([len(one.ids) for one in read]), self.settings.batch_tokens):
            batch = [read[row] for row in rows]
            estimates = estimate(self.model, self.tokenizer, batch, self.dtype)
            for row, one, of_words in zip(rows.tolist(), batch, estimates):
                counted = frequencies(one.words, of_words)
                yield row, [" ".join(word for word, count in counted.items() for _ in range(count))]
