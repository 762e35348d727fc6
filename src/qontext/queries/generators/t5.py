"""Queries from a sequence-to-sequence model trained to generate the queries that a passage answers (doc2query).

    q_ic ~ P(q | prefix + passage_i), c = 1 … C, nucleus p = 0.95 within the 25 most likely tokens

Nogueira and Lin, "From doc2query to docTTTTTquery"; the settings are those of query-as-context pre-training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from qontext.data.collection import Passage
from qontext.frame.config import ComputeConfig, Input, Options
from qontext.frame.files import read_json
from qontext.queries.generators import Generator, Task

DEFAULT_MODEL = "doc2query/all-with_prefix-t5-base-v1"
SETTINGS_FILE = "generator.json"
TARGETS = ("answers", "titles", "sentences")
"""The texts that a model can learn to write for a query, instead of queries for a passage."""
CHARACTERS_PER_TOKEN = 20
"""Maximum characters per token; very long passages are truncated before tokenization."""


class SamplingOptions(Options):
    """Read by t5, causal and llm."""

    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Sampling temperature: above 1 more diverse queries, below 1 less diverse ones."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Nucleus sampling: draw from the smallest set of tokens with this cumulative probability."""
    max_new_tokens: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Maximum query length in tokens."""
    max_passage_tokens: Annotated[int, Field(ge=8, le=100_000)] = 384
    """Maximum passage length in tokens; longer passages are truncated (llm: four characters count as a token)."""


class T5Options(SamplingOptions, ComputeConfig):
    """Read by the generator `t5`."""

    model: Annotated[str, Input()] = DEFAULT_MODEL
    """Sequence-to-sequence model: a folder or Hub name."""
    prefix: str | None = None
    """Text before each passage. Default: the one that the model was trained with, or 'text2query: '."""
    top_k: Annotated[int, Field(ge=0)] = 25
    """Draw from this many most likely tokens; 0 = all."""
    batch_tokens: Annotated[int, Field(ge=1)] = 8192
    """Passage tokens per batch, including padding."""


class Trained(TypedDict):
    """The content of `generator.json`: the input format of the model, and one of `TARGETS` if it writes that."""

    learns: NotRequired[str]

    prefix: NotRequired[str]
    with_title: NotRequired[bool]
    tail: NotRequired[str]
    """The text between a passage and its query, for a decoder-only model."""


def trained(folder: Path | str) -> Trained:
    """The settings of its training in a model folder; none, if it was not trained by Qontext."""
    file = Path(folder) / SETTINGS_FILE
    settings: Trained = read_json(file, Trained) if file.is_file() else {}
    return settings


@dataclass(frozen=True)
class SourceText:
    """The input format of a model: the prefix, and whether titles are prepended."""

    prefix: str
    with_title: bool

    @classmethod
    def of(cls, settings: Trained, prefix: str = "") -> SourceText:
        """The input format of a training; with this prefix, if it names none."""
        return cls(settings.get("prefix", prefix), settings.get("with_title", False))

    def text(self, passage: Passage) -> str:
        title = f"{passage.title}: " if self.with_title and passage.title else ""
        return f"{self.prefix}{title}{passage.text}"


class T5(Generator):
    """A sequence-to-sequence model."""

    Options = T5Options
    model_option = "model"

    def __init__(self, options: T5Options, task: Task) -> None:
        from qontext.models.language import load_seq2seq, seq2seq_folder
        from qontext.models.precision import own_device, resolve_device, resolve_precision
        from qontext.models.products import use_where_faster
        from qontext.queries.generators.sampling import Sampler

        super().__init__(options, task)
        folder = seq2seq_folder(options.model)
        self.device = resolve_device(own_device(options.device))
        self.dtype = resolve_precision(options.precision, self.device)
        model, self.tokenizer = load_seq2seq(folder)
        self.model = model.to(self.device)
        use_where_faster(self.model, self.device, self.dtype, keep=False)
        default = "text2query: " if "with_prefix" in options.model else ""
        self.source = SourceText.of(trained(folder), default)
        if options.prefix is not None:
            self.source = replace(self.source, prefix=options.prefix)
        self.sampler = Sampler.of(options, task)

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        import numpy as np

        from qontext.models.batching import batches_by_length

        longest = self.options.max_passage_tokens
        texts = [self.source.text(passage)[: longest * CHARACTERS_PER_TOKEN] for passage in passages]
        ids = self.tokenizer(texts, truncation=True, max_length=longest)["input_ids"]
        for rows in batches_by_length(np.array([len(x) for x in ids]), self.options.batch_tokens):
            names = [passages[row].id for row in rows]
            own = [ids[row] for row in rows]
            samples = write(self.model, self.tokenizer, own, names, self.sampler, self.dtype)
            yield from zip(rows.tolist(), samples)


def write(
    model: Any, tokenizer: Any, ids: list[list[int]], names: list[str], sampler: Any, dtype: Any
) -> list[list[str]]:
    """Texts that a sequence-to-sequence model writes for tokenized texts with these names."""
    import torch

    from qontext.models.precision import autocast
    from qontext.queries.generators.sampling import Seq2SeqDecoder, draw, end_tokens

    padded = tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(model.device)
    with torch.inference_mode(), autocast(model.device, dtype):
        decoder = Seq2SeqDecoder(model, padded["input_ids"], padded["attention_mask"])
        samples = draw(decoder, names, sampler, end_tokens(model, model.device))
    return [tokenizer.batch_decode(tokens, skip_special_tokens=True) for tokens in samples]
