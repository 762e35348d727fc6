"""The generators: one table, one signature.

A generator is opened once per process, as ``open(settings) → generator``, and is then called with
one part's passages at a time. It gives (index in the part, queries) in whatever order they get done, and
counts in `tally` what it wants to report (tokens, failures); the stage adds that up over all parts.

A new one is a file with its options and its `open`, and a line here and among the bases of `GenerateConfig`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from qontext.collection import Passage
from qontext.config import StageConfig
from qontext.queries import file, keyphrase, llm, t5

if TYPE_CHECKING:
    from qontext.queries.generate import GenerateConfig


class Generator(Protocol):
    """Passages of one part → their queries."""

    tally: Counter[str]

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]: ...


@dataclass(frozen=True)
class Kind:
    """How a generator is opened, and the settings that it alone reads."""

    open: Callable[[GenerateConfig], Generator]
    options: type[StageConfig]


GENERATORS: Mapping[str, Kind] = {
    "t5": Kind(t5.open_generator, t5.T5Options),
    "llm": Kind(llm.open_generator, llm.LlmOptions),
    "keyphrase": Kind(keyphrase.open_generator, StageConfig),
    "file": Kind(file.open_generator, file.FileOptions),
}


def unread(name: str) -> list[str]:
    """The settings of other generators, which this one does not read."""
    own = set(GENERATORS[name].options.model_fields)
    others = {field for kind in GENERATORS.values() for field in kind.options.model_fields}
    return sorted(others - own)
