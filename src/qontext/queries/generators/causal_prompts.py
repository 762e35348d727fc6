"""The prompt of a local language model, and the query in its continuation.

A model that was fine-tuned by `train-generator` reads the passage and a label. Any other model reads an instruction
with worked examples: as a conversation if its tokenizer has a chat template, else as plain text.

    [head: instruction, examples] [passage, cut to its budget] [tail: label]  →  query

The head is the same for all passages. A passage is tokenized by itself, so that no text in it can end its turn of the
conversation, and only the passage is cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from qontext.frame.errors import QontextError, first_line

QueryKind = Literal["question", "keywords", "claim", "title"]
TRAINED_TAIL = "\n\nQuestion:"
_PLACE = "\u2063PASSAGE\u2063"
"""A placeholder for the passage while a chat template is filled in; invisible separators keep it unique."""
_LABEL = re.compile(
    r"^(?:(?:question|keywords|claim|title|query|answer)\s*:\s*|\d{1,2}[.)]\s+|[-*•]\s+)+", re.I
)
_QUOTES = "\"“”'‘’`* "


class Shot(NamedTuple):
    """A passage and a query of each kind."""

    passage: str
    question: str
    keywords: str
    claim: str
    title: str


INSTRUCTIONS: dict[QueryKind, str] = {
    "question": "Write one short question that this passage answers.",
    "keywords": "Write a search query of two to six keywords that finds this passage.",
    "claim": "Write one short factual claim that this passage confirms.",
    "title": "Write a short title for this passage.",
}
EXAMPLES = (
    Shot(
        "The river Danube rises in the Black Forest of Germany and flows for 2,850 kilometers through ten countries "
        "before it reaches the Black Sea. It is the second-longest river in Europe, after the Volga.",
        "Where does the Danube rise?",
        "Danube source mouth length",
        "The Danube flows through ten countries.",
        "The Danube",
    ),
    Shot(
        "\"Do not open the chest,\" said the old woman, and she went out to feed the goats. But the boy was curious, "
        "and no sooner had the door closed than he lifted the lid.",
        "What did the boy do when the old woman went out?",
        "boy opens chest old woman goats",
        "The boy opened the chest although he was told not to.",
        "The boy and the chest",
    ),
    Shot(
        "Vitamin D deficiency often has no symptoms. When it is severe, it causes bone pain and weak muscles. "
        "Treatment consists of supplements, a diet rich in fish and eggs, and more time in the sun.",
        "How is a lack of vitamin D treated?",
        "vitamin D deficiency symptoms treatment",
        "Severe vitamin D deficiency causes bone pain.",
        "Vitamin D deficiency",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Prompt:
    """The tokens before and after each passage."""

    head: list[int]
    tail: list[int]

    @classmethod
    def of_instruction(cls, tokenizer: Any, kind: QueryKind, examples: int) -> Prompt:
        """The prompt of a model that was not fine-tuned here."""
        text = _conversation(tokenizer, kind, examples) if tokenizer.chat_template else _plain(kind, examples)
        head, _, tail = text.partition(_PLACE)
        if not tail:
            raise QontextError(
                "the chat template of the tokenizer does not repeat the messages that it is given"
            )
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


def _conversation(tokenizer: Any, kind: QueryKind, examples: int) -> str:
    """A conversation up to the query; each example is a turn."""
    messages = []
    for example in EXAMPLES[:examples]:
        messages.append({"role": "user", "content": f"{INSTRUCTIONS[kind]}\n\nPassage: {example.passage}"})
        messages.append({"role": "assistant", "content": getattr(example, kind)})
    messages.append({"role": "user", "content": f"{INSTRUCTIONS[kind]}\n\nPassage: {_PLACE}"})
    try:
        text: str = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # templates are programs that raise what they like
        raise QontextError(f"the chat template of the tokenizer fails: {first_line(error)}") from None
    # Without examples, a small model would begin with an introduction.
    return text if examples else f"{text}{kind.capitalize()}:"


def _plain(kind: QueryKind, examples: int) -> str:
    label = kind.capitalize()
    examples_text = "".join(
        f"Passage: {e.passage}\n{label}: {getattr(e, kind)}\n\n" for e in EXAMPLES[:examples]
    )
    return f"{INSTRUCTIONS[kind]}\n\n{examples_text}Passage: {_PLACE}\n{label}:"


def _tokens(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
