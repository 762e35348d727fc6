"""Parts in this process, one after the other; what the next part is made of is read meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from qontext.frame.parts import Outcome, Part, Parts


def run(verb: str, parts: Parts[Any], waiting: list[Part], advance: Callable[..., None]) -> Outcome:
    outcome, parts.advance = Outcome(), advance
    try:
        parts.open()
        for part, content in _with_content(parts, waiting):
            outcome.counts.update(parts.make(part, content))
        outcome.facts = parts.facts()
    finally:
        parts.close()
    return outcome


def _with_content(parts: Parts[Any], waiting: list[Part]) -> Iterator[tuple[Part, Any]]:
    """The parts, each with what it is made of."""
    if not parts.reads_ahead:
        yield from ((part, None) for part in waiting)
        return
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(parts.read, waiting[0])
        for number, part in enumerate(waiting):
            content = coming.result()
            if number + 1 < len(waiting):
                coming = pool.submit(parts.read, waiting[number + 1])
            yield part, content
