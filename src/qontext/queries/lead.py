"""The passage's first sentence as its query: a control for generated queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from qontext.data.collection import Passage
from qontext.frame.config import Options
from qontext.queries.generators import Generator, Task
from qontext.queries.words import Tokens


class Lead(Generator):
    """Sentences end where `keyphrase` has them end."""

    is_quick = True

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()

    @classmethod
    def open(cls, options: Options, task: Task) -> Lead:
        return cls()

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        tokens = Tokens.of([passage.text for passage in passages])
        for index in range(len(passages)):
            first, after = tokens.starts[index : index + 2].tolist()
            if first == after:
                yield index, []
                continue
            last = first + int(tokens.ends[first:after].argmax())
            yield index, [" ".join(tokens.written[t] for t in tokens.token[first : last + 1])]
