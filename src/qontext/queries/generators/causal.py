"""Queries from a local language model (Llama and its kind), by instruction or after fine-tuning.

    q_ic ~ P(q | instruction, examples, passage_i),  c = 1 … C,  nucleus p = 0.95 within the 25 most likely tokens

Random numbers are those of the generator `t5`: a function of seed, passage, sample and step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from qontext.data.collection import Passage
from qontext.frame.config import ComputeConfig, Input
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.queries.generators import Generator, Task
from qontext.queries.generators.causal_prompts import Prompt, QueryKind, read_query, tokens_with
from qontext.queries.generators.t5 import (
    CHARACTERS_PER_TOKEN,
    SETTINGS_FILE,
    SamplingOptions,
    SourceText,
    Trained,
)


class CausalOptions(SamplingOptions, ComputeConfig):
    """Read by the generator `causal`."""

    model: Annotated[str | None, Input()] = None
    """Decoder-only language model: a folder with safetensors, a GGUF file, or a Hub name. Required."""
    query_kind: QueryKind | None = None
    """Kind of query: question, keywords, claim or title. Default: question, or what the model was fine-tuned on."""
    examples: Annotated[int, Field(ge=0, le=3)] = 3
    """Worked examples in the prompt, 0 to 3. Not used for a model from train-generator."""
    top_k: Annotated[int, Field(ge=0)] = 25
    """Draw from this many most likely tokens; 0 = all."""
    batch_tokens: Annotated[int, Field(ge=1)] = 8192
    """Prompt tokens per batch, including padding."""

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        if not self.model:
            raise QontextError(
                "the generator 'causal' needs a model", remedy="Add --model with a folder or a GGUF file."
            )
        return self


class Causal(Generator):
    """A local language model."""

    Options = CausalOptions
    part_passages = 128
    model_option = "model"

    def __init__(self, settings: CausalOptions, task: Task) -> None:
        import torch

        from qontext.models.language_models import causal_folder, load_causal
        from qontext.models.precision import own_device, resolve_device, resolve_precision
        from qontext.models.products import use_where_faster
        from qontext.queries.generators.sampling import LanguageHead, Sampler, end_tokens

        assert settings.model is not None, "checked by the options"
        folder = causal_folder(settings.model)
        device = resolve_device(own_device(settings.device))
        dtype = resolve_precision(settings.precision, device)
        model, self.tokenizer = load_causal(folder, dtype)
        self.settings, self.model = settings, model.to(device)
        use_where_faster(self.model, device, dtype, keep=False)
        self.kind, self.source, self.prompt = read_prompt(folder, self.tokenizer, settings)
        self._check_length()
        self.head = LanguageHead(self.model, self.prompt.head)
        breaks = torch.tensor(tokens_with(self.tokenizer, "\n"), device=device, dtype=torch.long)
        self.ends = torch.cat([end_tokens(self.model, device), breaks])
        marks = tokens_with(self.tokenizer, "?") if self.kind == "question" else []
        self.lasts = torch.tensor(marks, device=device, dtype=torch.long)
        self.sampler = Sampler.of(settings, task)
        self.tally: Counter[str] = Counter()

    @classmethod
    def open(cls, options: CausalOptions, task: Task) -> Causal:
        return cls(options, task)

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        import numpy as np

        from qontext.models.batching import batches_by_length
        from qontext.queries.generators.sampling import CausalDecoder, draw

        longest = self.settings.max_passage_tokens
        texts = [self.source.text(passage)[: longest * CHARACTERS_PER_TOKEN] for passage in passages]
        prompts = self.prompt.encode(self.tokenizer, texts, longest)
        for rows in batches_by_length(np.array([len(ids) for ids in prompts]), self.settings.batch_tokens):
            batch = rows.tolist()
            decoder = CausalDecoder(self.model, self.head, [prompts[i] for i in batch])
            ids = [passages[i].id for i in batch]
            for place, tokens in zip(batch, draw(decoder, ids, self.sampler, self.ends, self.lasts)):
                texts_of = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
                yield place, [read_query(text, self.kind) for text in texts_of]

    def _check_length(self) -> None:
        room = getattr(self.model.config, "max_position_embeddings", None)
        prompt = len(self.prompt.head) + len(self.prompt.tail)
        needed = prompt + self.settings.max_passage_tokens + self.settings.max_new_tokens
        if room is not None and needed > room:
            raise QontextError(
                f"the model reads {room:,} tokens; the prompt, a passage and a query may have {needed:,}",
                place=self.settings.model,
                remedy="Lower --max-passage-tokens or --examples.",
            )


def read_prompt(
    folder: Path, tokenizer: Any, settings: CausalOptions
) -> tuple[QueryKind | None, SourceText, Prompt]:
    """The kind of query, the input format of passages, and the prompt around them."""
    trained: dict[str, Any] = {}
    if (folder / SETTINGS_FILE).is_file():
        trained = read_json(folder / SETTINGS_FILE, Trained)
    if "tail" not in trained:
        kind: QueryKind = settings.query_kind or "question"
        return kind, SourceText("", True), Prompt.of_instruction(tokenizer, kind, settings.examples)
    if settings.query_kind is not None:
        raise QontextError(
            "the model was fine-tuned on its own kind of queries and reads no instruction",
            place=folder,
            remedy="Leave out --query-kind.",
        )
    source = SourceText(trained.get("prefix", ""), trained.get("with_title", False))
    return None, source, Prompt.of_training(tokenizer, trained["tail"])
