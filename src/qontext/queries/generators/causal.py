"""Queries from a local language model (Llama and its kind), by instruction or after fine-tuning.

    q_ic ~ P(q | instruction, examples, passage_i),  c = 1 … C,  nucleus p = 0.95 within the 25 most likely tokens

Random numbers are those of the generator `t5`: a function of seed, passage, sample and step. A model that was fine-tuned by
`train-generator` reads the passage and a label. Any other model reads an instruction with worked examples: as a conversation
if its tokenizer has a chat template, else as plain text.

    [head: instruction, examples] [passage, cut to its budget] [tail: label]  →  query

The head is the same for all passages. A passage is tokenized by itself, so that no text in it can end its turn of the
conversation, and only the passage is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from qontext.data.collection import Passage
from qontext.frame.config import ComputeConfig, Input
from qontext.queries.generators import Generator, Task
from qontext.queries.generators.t5 import CHARACTERS_PER_TOKEN, SamplingOptions, SourceText, trained

QueryKind = Literal["question", "keywords", "claim"]
TRAINED_TAIL = "\n\nQuestion:"
_PLACE = "\u2063PASSAGE\u2063"
"""A placeholder for the passage while a chat template is filled in; invisible separators keep it unique."""
_LABEL = re.compile(
    r"^(?:(?:question|keywords|claim|title|query|answer)\s*:\s*|\d{1,2}[.)]\s+|[-*•]\s+)+", re.I
)
_QUOTES = "\"“”'‘’`* "


class CausalOptions(SamplingOptions, ComputeConfig):
    """Read by the generator `causal`."""

    model: Annotated[str, Input()]
    """Decoder-only language model: a folder with safetensors, or a Hub name."""
    query_kind: QueryKind = "question"
    """Kind of query: question, keywords or claim; of a model from train-generator, what it was fine-tuned on."""
    top_k: Annotated[int, Field(ge=0)] = 25
    """Draw from this many most likely tokens; 0 = all."""
    batch_tokens: Annotated[int, Field(ge=1)] = 8192
    """Prompt tokens per batch, including padding."""


class Causal(Generator):
    """A local language model."""

    Options = CausalOptions
    part_passages = 128
    model_option = "model"

    def __init__(self, options: CausalOptions, task: Task) -> None:
        import torch

        from qontext.models.language import causal_folder, load_causal
        from qontext.models.precision import own_device, resolve_device, resolve_precision
        from qontext.models.products import use_where_faster
        from qontext.queries.generators.sampling import LanguageHead, Sampler, end_tokens

        super().__init__(options, task)
        folder = causal_folder(options.model)
        device = resolve_device(own_device(options.device))
        dtype = resolve_precision(options.precision, device)
        model, self.tokenizer = load_causal(folder, dtype)
        self.model = model.to(device)
        use_where_faster(self.model, device, dtype, keep=False)
        self.kind: QueryKind | None = options.query_kind
        if tail := trained(folder).get("tail"):
            self.kind, self.source = None, SourceText.of(trained(folder))
            self.prompt = Prompt.of_training(self.tokenizer, tail)
        else:
            self.source = SourceText("", True)
            self.prompt = Prompt.of_instruction(self.tokenizer, options.query_kind)
        self.head = LanguageHead(self.model, self.prompt.head)
        breaks = torch.tensor(tokens_with(self.tokenizer, "\n"), device=device, dtype=torch.long)
        self.ends = torch.cat([end_tokens(self.model, device), breaks])
        marks = tokens_with(self.tokenizer, "?") if self.kind == "question" else []
        self.lasts = torch.tensor(marks, device=device, dtype=torch.long)
        self.sampler = Sampler.of(options, task)

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        import numpy as np

        from qontext.models.batching import batches_by_length
        from qontext.queries.generators.sampling import CausalDecoder, draw

        longest = self.options.max_passage_tokens
        texts = [self.source.text(passage)[: longest * CHARACTERS_PER_TOKEN] for passage in passages]
        prompts = self.prompt.encode(self.tokenizer, texts, longest)
        for rows in batches_by_length(np.array([len(ids) for ids in prompts]), self.options.batch_tokens):
            batch = rows.tolist()
            decoder = CausalDecoder(self.model, self.head, [prompts[i] for i in batch])
            ids = [passages[i].id for i in batch]
            for place, tokens in zip(batch, draw(decoder, ids, self.sampler, self.ends, self.lasts)):
                texts_of = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
                yield place, [read_query(text, self.kind) for text in texts_of]


class Shot(NamedTuple):
    """A passage and a query of each kind."""

    passage: str
    question: str
    keywords: str
    claim: str


INSTRUCTIONS: dict[QueryKind, str] = {
    "question": "Write one short question that this passage answers.",
    "keywords": "Write a search query of two to six keywords that finds this passage.",
    "claim": "Write one short factual claim that this passage confirms.",
}
EXAMPLES = (
    Shot(
        "The river Danube rises in the Black Forest of Germany and flows for 2,850 kilometers through ten countries "
        "before it reaches the Black Sea. It is the second-longest river in Europe, after the Volga.",
        "Where does the Danube rise?",
        "Danube source mouth length",
        "The Danube flows through ten countries.",
    ),
    Shot(
        "\"Do not open the chest,\" said the old woman, and she went out to feed the goats. But the boy was curious, "
        "and no sooner had the door closed than he lifted the lid.",
        "What did the boy do when the old woman went out?",
        "boy opens chest old woman goats",
        "The boy opened the chest although he was told not to.",
    ),
    Shot(
        "Vitamin D deficiency often has no symptoms. When it is severe, it causes bone pain and weak muscles. "
        "Treatment consists of supplements, a diet rich in fish and eggs, and more time in the sun.",
        "How is a lack of vitamin D treated?",
        "vitamin D deficiency symptoms treatment",
        "Severe vitamin D deficiency causes bone pain.",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Prompt:
    """The tokens before and after each passage."""

    head: list[int]
    tail: list[int]

    @classmethod
    def of_instruction(cls, tokenizer: Any, kind: QueryKind) -> Prompt:
        """The prompt of a model that was not fine-tuned here."""
        text = _conversation(tokenizer, kind) if tokenizer.chat_template else _plain(kind)
        head, _, tail = text.partition(_PLACE)
        # A chat template writes the first token of a text itself.
        start = [] if tokenizer.chat_template else first_token(tokenizer)
        return cls(start + _tokens(tokenizer, head), _tokens(tokenizer, tail))

    @classmethod
    def of_training(cls, tokenizer: Any, tail: str) -> Prompt:
        """The prompt of a model that was fine-tuned here."""
        return cls(first_token(tokenizer), _tokens(tokenizer, tail))

    def encode(self, tokenizer: Any, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
        """The tokens of each passage, cut to `max_tokens`, and what follows it."""
        if not texts:
            return []
        passages = tokenizer(
            list(texts), add_special_tokens=False, split_special_tokens=True, truncation=True,
            max_length=max_tokens,
        )["input_ids"]  # fmt: skip
        return [[*ids, *self.tail] for ids in passages]


def first_token(tokenizer: Any) -> list[int]:
    """The token with which the tokenizer begins a text, if it has one."""
    start = tokenizer.bos_token_id
    return [start] if start is not None and tokenizer("a")["input_ids"][:1] == [start] else []


def tokens_with(tokenizer: Any, sign: str) -> list[int]:
    """The tokens of the vocabulary whose text contains the sign."""
    spelled = {sign, *tokenizer.convert_ids_to_tokens(_tokens(tokenizer, f"a{sign}"))[-1:]}
    # Vocabularies of bytes spell a line break with a letter of their own.
    spelled |= {token.removeprefix("a") for token in spelled} - {""}
    maybe = [number for token, number in tokenizer.get_vocab().items() if any(s in token for s in spelled)]
    return sorted(number for number in maybe if sign in tokenizer.decode([number]))


def read_query(text: str, kind: QueryKind | None) -> str:
    """The query in a continuation: its first line that says something, without labels, numbers and quotes.

    Of a question, what follows the first question mark is left out.
    """
    line = next((line.strip() for line in text.splitlines() if line.strip(_QUOTES)), "")
    line = _LABEL.sub("", line.strip(_QUOTES)).strip(_QUOTES)
    if kind == "question" and "?" in line:
        line = line[: line.index("?") + 1]
    return line


def _conversation(tokenizer: Any, kind: QueryKind) -> str:
    """A conversation up to the query; each example is a turn."""
    messages = []
    for example in EXAMPLES:
        messages.append({"role": "user", "content": f"{INSTRUCTIONS[kind]}\n\nPassage: {example.passage}"})
        messages.append({"role": "assistant", "content": getattr(example, kind)})
    messages.append({"role": "user", "content": f"{INSTRUCTIONS[kind]}\n\nPassage: {_PLACE}"})
    text: str = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return text


def _plain(kind: QueryKind) -> str:
    label = kind.capitalize()
    shots = "".join(f"Passage: {e.passage}\n{label}: {getattr(e, kind)}\n\n" for e in EXAMPLES)
    return f"{INSTRUCTIONS[kind]}\n\n{shots}Passage: {_PLACE}\n{label}:"


def _tokens(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
