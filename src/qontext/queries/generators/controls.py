"""Controls for generated queries, without a model: the title, the first sentence, random spans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from qontext.data.collection import Passage
from qontext.queries.generators import Generator
from qontext.queries.generators.keyphrase import TitleOptions
from qontext.queries.words import TokenArrays
from qontext.training.randomness import below, key_of


class Title(Generator):
    """The passage's title. Passages without one get no query."""

    is_quick = True

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        for index, passage in enumerate(passages):
            yield index, [passage.title]


class Lead(Generator):
    """The passage's first sentence. Sentences end where `keyphrase` has them end."""

    is_quick = True

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        tokens = TokenArrays.of([passage.text for passage in passages])
        for index in range(len(passages)):
            first, after = tokens.starts[index : index + 2].tolist()
            last = first + int(tokens.ends[first:after].argmax()) if first < after else first - 1
            yield index, [" ".join(tokens.written[t] for t in tokens.token[first : last + 1])]


class SpanOptions(TitleOptions):
    shortest: Annotated[int, Field(ge=1)] = 4
    """Words of the shortest span."""
    longest: Annotated[int, Field(ge=1)] = 16
    """Words of the longest span; of a shorter passage, at most the whole."""


class Span(Generator):
    """Random spans of the passage, which tell a query from merely a short text of the passage.

    query = the title, and a span of the text
    length ~ U{shortest … longest} words,  start ~ U over all places where it fits

    The draw is a function of seed, passage and the query's number.
    """

    Options = SpanOptions
    is_quick = True

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        options, seed, numbers = self.options, self.task.seed, np.arange(self.task.per_passage)
        for index, passage in enumerate(passages):
            words, key = passage.text.split(), key_of(passage.id)
            choices = options.longest - options.shortest + 1
            sizes = options.shortest + below(choices, seed, "span length", key, numbers)
            sizes = np.minimum(sizes, len(words))
            starts = below(len(words) - sizes + 1, seed, "span start", key, numbers)
            between = " " if options.title == "prepend" else None
            spans = (" ".join(words[start : start + size]) for start, size in zip(starts, sizes))
            yield index, [passage._replace(text=span).joined(between) for span in spans]
