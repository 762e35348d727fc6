"""The passage's title as its query: a control for generated queries, without any cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from qontext.data.collection import Passage
from qontext.frame.config import Options
from qontext.queries.generators import Generator, Task


class Title(Generator):
    """Passages without a title get no query."""

    is_quick = True

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()

    @classmethod
    def open(cls, options: Options, task: Task) -> Title:
        return cls()

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        for index, passage in enumerate(passages):
            yield index, [passage.title] if passage.title.strip() else []
