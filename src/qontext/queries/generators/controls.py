"""Controls for generated queries, without a model: the title, the first sentence, random spans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from qontext.data.collection import Passage
from qontext.frame.config import Options
from qontext.frame.errors import QontextError
from qontext.queries.generators import Generator, Task
from qontext.queries.words import TokenArrays
from qontext.training.randomness import below, key_of


class Title(Generator):
    """The passage's title. Passages without one get no query."""

    is_quick = True

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()

    @classmethod
    def open(cls, options: Options, task: Task) -> Title:
        return cls()

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        for index, passage in enumerate(passages):
            yield index, [passage.title] if passage.title.strip() else []


class Lead(Generator):
    """The passage's first sentence. Sentences end where `keyphrase` has them end."""

    is_quick = True

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()

    @classmethod
    def open(cls, options: Options, task: Task) -> Lead:
        return cls()

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        tokens = TokenArrays.of([passage.text for passage in passages])
        for index in range(len(passages)):
            first, after = tokens.starts[index : index + 2].tolist()
            if first == after:
                yield index, []
                continue
            last = first + int(tokens.ends[first:after].argmax())
            yield index, [" ".join(tokens.written[t] for t in tokens.token[first : last + 1])]


class SpanOptions(Options):
    """Read by the generator `span`."""

    shortest: Annotated[int, Field(ge=1)] = 4
    """Words of the shortest span."""
    longest: Annotated[int, Field(ge=1)] = 16
    """Words of the longest span; of a shorter passage, at most the whole."""
    title: Literal["prepend", "leave"] = "prepend"
    """Put the passage's title before the span, as before the passage, or leave it out."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.shortest > self.longest:
            raise QontextError(f"--shortest {self.shortest} is above --longest {self.longest}")
        return self


class Span(Generator):
    """Random spans of the passage, which tell a query from merely a short text of the passage.

    query = the title, and a span of the text
    length ~ U{shortest … longest} words,  start ~ U over all places where it fits

    The draw is a function of seed, passage and the query's number.
    """

    Options = SpanOptions
    is_quick = True

    def __init__(self, settings: SpanOptions, task: Task) -> None:
        self.settings, self.task = settings, task
        self.tally: Counter[str] = Counter()

    @classmethod
    def open(cls, options: SpanOptions, task: Task) -> Span:
        return cls(options, task)

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        numbers = np.arange(self.task.per_passage)
        for index, passage in enumerate(passages):
            words = passage.text.split()
            key = key_of(passage.id)
            choices = self.settings.longest - self.settings.shortest + 1
            sizes = self.settings.shortest + below(choices, self.task.seed, "span length", key, numbers)
            sizes = np.minimum(sizes, len(words))
            starts = below(len(words) - sizes + 1, self.task.seed, "span start", key, numbers)
            between = " " if self.settings.title == "prepend" else None
            spans = (" ".join(words[start : start + size]) for start, size in zip(starts, sizes))
            yield index, [passage._replace(text=span).joined(between) for span in spans]
