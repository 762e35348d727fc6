"""Query generators: the base class and the table of built-in ones.

A generator is opened once per process and then called with one part's passages at a time. It yields (index in
the part, queries) in any order, and counts what it reports (tokens, failures) in `tally`; the stage sums
these over all parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qontext.frame import config
from qontext.frame.kinds import Kind, Kinds

if TYPE_CHECKING:
    from qontext.data.collection import Passage

GENERATORS = Kinds(
    "generator",
    "qontext.generators",
    "qontext.queries.generators:Generator",
    {
        "t5": Kind("qontext.queries.t5:T5", "a sequence-to-sequence model"),
        "causal": Kind("qontext.queries.causal:Causal", "a local language model"),
        "llm": Kind("qontext.queries.llm:Llm", "a chat endpoint"),
        "keyphrase": Kind("qontext.queries.keyphrase:Keyphrase", "rules, no model"),
        "title": Kind("qontext.queries.title:Title", "the title"),
        "lead": Kind("qontext.queries.lead:Lead", "the first sentence"),
        "span": Kind("qontext.queries.span:Span", "random spans"),
        "file": Kind("qontext.queries.file:FromFile", "existing queries"),
    },
)


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
    """Whether it is so fast that `adapt` does not measure its speed."""
    model_option: ClassVar[str] = ""
    """The option for the model, if it has one; set by `adapt --generator-model`."""

    tally: Counter[str]

    @classmethod
    @abstractmethod
    def open(cls, options: Any, task: Task) -> Generator:
        """Open the generator; slow initialization and optional imports happen here."""

    @classmethod
    def computes_in(cls, options: Any) -> tuple[str, str] | None:
        """For generators with the option `precision`: the resolved number format and device type."""
        return None

    @classmethod
    def report(cls, options: Any, tally: Counter[str]) -> dict[str, Any]:
        """Additional entries of the stage's summary, computed from the counts."""
        return {}

    @abstractmethod
    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        """(index, queries) of every passage, in any order."""
