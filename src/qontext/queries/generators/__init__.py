"""Query generators: the base class, the table of built-in ones, and the cleaning of their output.

A generator is made once per process, with its options and a `Task`, and then called with one part's passages at a time. It
yields (index in the part, queries) in any order, and counts what it reports (tokens, failures) in `tally`; the stage sums
these over all parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import regex  # type: ignore[import-untyped]  # a dependency of transformers

from qontext.frame import config
from qontext.frame.kinds import Kind, Kinds

if TYPE_CHECKING:
    from qontext.data.collection import Passage

GENERATORS = Kinds(
    "generator",
    "qontext.generators",
    "qontext.queries.generators:Generator",
    {
        "t5": Kind("qontext.queries.generators.t5:T5", "a sequence-to-sequence model"),
        "causal": Kind("qontext.queries.generators.causal:Causal", "a local language model"),
        "llm": Kind("qontext.queries.generators.llm:Llm", "a chat endpoint"),
        "keyphrase": Kind("qontext.queries.generators.keyphrase:Keyphrase", "rules, no model"),
        "title": Kind("qontext.queries.generators.controls:Title", "the title"),
        "lead": Kind("qontext.queries.generators.controls:Lead", "the first sentence"),
        "span": Kind("qontext.queries.generators.controls:Span", "random spans"),
        "terms": Kind(
            "qontext.baselines.deepct:Terms",
            "the passage's own words, weighted by a trained model: DeepCT",
        ),
        "file": Kind("qontext.queries.generators.file:FromFile", "existing queries"),
    },
)


_SIGNS = regex.compile(r"(?:[^\p{L}\p{M}\p{N}]\p{M}*|^\p{M}+)+")
"""Signs outside of words, of which vowel signs and tone marks are a part."""
_ASCII = bytes(ord(chr(n).lower()) if chr(n).isalnum() else 32 for n in range(128)) + bytes(range(128, 256))
"""ASCII characters in lower case, punctuation as spaces."""

ECHO_SHARE = 0.8
"""A query that repeats more than this share of the passage's characters is an echo."""


@dataclass(frozen=True)
class Task:
    """The input of every generator besides its own options. `passages` is the path of the whole collection,
    for generators that need its statistics. With the same `seed`, the queries of a passage do not depend on
    part, process or order.
    """

    passages: str
    per_passage: int
    seed: int


class Generator(ABC):
    """Passages of one part → their queries."""

    Options: ClassVar[type[config.Options]] = config.Options
    """The options of the generator."""
    part_passages: ClassVar[int] = 2048
    """Default number of passages per part. An interrupted process loses at most one part."""
    is_quick: ClassVar[bool] = False
    """True if it is so fast that `adapt` does not measure its speed."""
    repeats_passage: ClassVar[bool] = False
    """True if its queries are meant to repeat the passage: echoes are kept."""
    model_option: ClassVar[str] = ""
    """The option for the model, if it has one; set by `adapt --generator-model`."""

    def __init__(self, options: Any, task: Task) -> None:
        """Slow initialization and optional imports happen here."""
        self.options, self.task, self.tally = options, task, Counter[str]()

    @classmethod
    def computes_in(cls, options: Any) -> str | None:
        """The resolved number format of generators that compute on a device."""
        if not isinstance(options, config.ComputeConfig):
            return None
        from qontext.models.precision import computes_in

        return computes_in(options)

    @abstractmethod
    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        """(index, queries) of every passage, in any order."""


def clean(
    generated: Iterable[str], passage: Passage, tally: Counter[str], *, keep_echoes: bool = False
) -> list[str]:
    """The queries worth keeping, in order; what is dropped is counted in `tally` by reason.

    Two queries are equal if they differ only in case, punctuation and white space.
    """
    queries: dict[str, str] = {}
    body: str | None = None
    for raw in generated:
        query = " ".join(raw.split())
        plain = _plain(query)
        if not plain:
            tally["empty"] += 1
        elif plain in queries:
            tally["duplicates"] += 1
        else:
            if not keep_echoes and body is None and len(query) > ECHO_SHARE / 2 * len(passage.text):
                body = _plain(passage.text)
            if body and len(plain) > ECHO_SHARE * len(body) and (plain in body or body in plain):
                tally["echoes"] += 1
            else:
                queries[plain] = query
    return list(queries.values())


def _plain(text: str) -> str:
    """Keep only words. ASCII, by far the most frequent, has a fast path."""
    if text.isascii():
        return b" ".join(text.encode().translate(_ASCII).split()).decode()
    return str(_SIGNS.sub(" ", text.casefold())).strip()
