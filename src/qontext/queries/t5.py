"""Queries from a sequence-to-sequence model that was trained to ask what a passage answers (doc2query).

    q_ic ~ P(q | prefix + passage_i),  c = 1 … C,  nucleus p = 0.95 within the 25 likeliest tokens

Nogueira and Lin, "From doc2query to docTTTTTquery"; the settings are those of query-as-context pre-training.
Two engines: `transformers` is the reference; `ctranslate2` is several times faster on a CPU (int8).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from qontext.collection import Passage
from qontext.config import Input, Machine, StageConfig

if TYPE_CHECKING:
    from qontext.queries.generate import GenerateConfig
    from qontext.queries.generators import Generator

DEFAULT_MODEL = "doc2query/all-with_prefix-t5-base-v1"
SETTINGS_FILE = "generator.json"
CHARACTERS_PER_TOKEN = 20
"""No tokenizer needs more text than this for a token on average; an enormous passage is cut before it."""


class SamplingOptions(StageConfig):
    """Read by t5 and llm."""

    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """t5, llm: above 1 more surprising queries, below 1 more of the same."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    """t5, llm: draw from the likeliest tokens that together hold this share of the probability."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 64
    """t5: the longest query, in tokens; llm: the same per query asked for."""
    max_passage_tokens: Annotated[int, Field(ge=8)] = 384
    """t5, llm: the rest of a longer passage is not read (llm: four characters count as a token)."""


class T5Options(SamplingOptions):
    """Read by the generator `t5`."""

    model: Annotated[str | None, Input()] = None
    """t5: a sequence-to-sequence model, by folder or hub name.

    If not given: doc2query/all-with_prefix-t5-base-v1."""
    prefix: str | None = None
    """t5: what stands before each passage; if not given, what the model was trained with ('text2query: ')."""
    top_k: Annotated[int, Field(ge=0)] = 25
    """t5: draw from this many likeliest tokens; 0 = all."""
    engine: Literal["transformers", "ctranslate2"] = "transformers"
    """t5: transformers, or ctranslate2 (faster on a CPU; repeatable only with the same batches)."""
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = "auto"
    """t5: auto is bf16 where the hardware has it, else fp32; with ctranslate2 int8, on a GPU fp16."""
    batch_tokens: Annotated[int, Field(ge=1)] = 8192
    """t5: passage tokens per batch, padding included."""
    device: Annotated[str, Machine()] = "auto"
    """t5: auto, cpu, cuda or cuda:N."""


@dataclass(frozen=True)
class Source:
    """How a model wants its passages: what stands before them, and whether their title does."""

    prefix: str
    with_title: bool

    @classmethod
    def of(cls, settings: T5Options, folder: Path) -> Source:
        """As the model was trained, which its folder says if it was trained here; a prefix asked for wins."""
        known: dict[str, Any] = {}
        if (folder / SETTINGS_FILE).is_file():
            known = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
        default = "text2query: " if "with_prefix" in str(settings.model) else ""
        prefix = known.get("prefix", default) if settings.prefix is None else settings.prefix
        return cls(prefix, bool(known.get("with_title", False)))

    def text(self, passage: Passage) -> str:
        title = f"{passage.title}: " if self.with_title and passage.title else ""
        return f"{self.prefix}{title}{passage.text}"

    def encode(self, tokenizer: Any, passages: list[Passage], max_tokens: int) -> list[list[int]]:
        """Token ids, cut to `max_tokens`."""
        texts = [self.text(passage)[: max_tokens * CHARACTERS_PER_TOKEN] for passage in passages]
        encoded: list[list[int]] = tokenizer(texts, truncation=True, max_length=max_tokens)["input_ids"]
        return encoded


def open_generator(settings: GenerateConfig) -> Generator:
    if settings.engine == "ctranslate2":
        from qontext.queries.ct2 import CTranslate2

        return CTranslate2(settings)
    return Transformers(settings)


class Transformers:
    """The reference engine."""

    def __init__(self, settings: GenerateConfig) -> None:
        from qontext.engine.precision import own_device, resolve_device, resolve_precision
        from qontext.errors import QontextError
        from qontext.queries.sampling import Sampler
        from qontext.queries.seq2seq import load_model, load_tokenizer, model_folder

        if settings.precision == "int8":
            raise QontextError("int8 is a format of the other engine", remedy="Add --engine ctranslate2.")
        folder = model_folder(str(settings.model))
        self.device = resolve_device(own_device(settings.device))
        self.dtype = resolve_precision(settings.precision, self.device)
        self.tokenizer = load_tokenizer(folder)
        self.model = load_model(folder, self.tokenizer).to(self.device)
        self.source, self.settings = Source.of(settings, folder), settings
        self.sampler = Sampler(
            settings.per_passage, settings.top_k, settings.top_p, settings.temperature,
            settings.max_new_tokens, settings.seed,
        )  # fmt: skip
        self.tally: Counter[str] = Counter()

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        import torch

        from qontext.queries.sampling import sample, token_batches

        ids = self.source.encode(self.tokenizer, passages, self.settings.max_passage_tokens)
        for batch in token_batches([len(x) for x in ids], self.settings.batch_tokens):
            padded = self.tokenizer.pad({"input_ids": [ids[i] for i in batch]}, return_tensors="pt")
            input_ids, mask = padded["input_ids"].to(self.device), padded["attention_mask"].to(self.device)
            assert isinstance(input_ids, torch.Tensor)
            drawn = sample(
                self.model, input_ids, mask, [passages[i].id for i in batch], self.sampler, self.dtype
            )
            for place, tokens in zip(batch, drawn):
                yield place, self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
