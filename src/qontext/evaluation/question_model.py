"""Held-out questions written by a local language model.

Keyphrases repeat the rare words of their passage, which favors search by words. A language model that was fine-tuned on
people's questions asks like people, though not always like those who search these documents (docs/results/adapt.md).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from qontext.frame import artifacts, log
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json

if TYPE_CHECKING:
    from qontext.data.collection import Passage
    from qontext.frame.artifacts import Workdir
    from qontext.queries.generators.causal import Causal

LONGEST = 192
"""Maximum tokens of a passage that are read; reading them takes most of the time."""
PART = 64
"""Questions that an interrupted stage loses at most."""


class AskingTime(NamedTuple):
    """Seconds to load the model, and for each question."""

    loading: float = 0.0
    question: float = 0.0


def write_questions(model: str, passages: Sequence[Passage], seed: int, work: Workdir) -> dict[str, str]:
    """Passage id → its question, in the order of the passages, without those for which the model writes none."""
    questions: dict[str, str] = {}
    generator = None
    with log.progress("write questions", len(passages), "questions") as advance:
        for start in range(0, len(passages), PART):
            part, name = passages[start : start + PART], f"questions/{start:05d}.json"
            if work.has(name):
                advance(len(part))
            else:
                generator = generator or _opened(model, seed, work)
                work.write_json(name, _written(generator, part, advance))
            questions |= read_json(work.path / name, dict[str, str])
    if not questions:
        raise QontextError(
            "the language model wrote no question",
            place=model,
            remedy="Fine-tune it with 'qontext train-generator', or use a larger one.",
        )
    return questions


def time_questions(model: str, passages: Sequence[Passage]) -> AskingTime:
    """The seconds to load the model and to ask a question on this machine."""
    started = time.monotonic()
    generator = _opened(model, seed=0)
    _written(generator, passages[:2], lambda count: None)  # one-time costs
    loaded = time.monotonic()
    _written(generator, passages, lambda count: None)
    return AskingTime(loaded - started, (time.monotonic() - loaded) / len(passages))


def _opened(model: str, seed: int, work: Workdir | None = None) -> Causal:
    from qontext.models.precision import computes_in
    from qontext.queries.generators import Task
    from qontext.queries.generators.causal import Causal, CausalOptions

    options = CausalOptions(model=model, max_passage_tokens=LONGEST, max_new_tokens=48)
    if work is not None:
        precision = artifacts.settle(work, options.precision, computes_in(options))
        options = options.model_copy(update={"precision": precision})
    return Causal(options, Task("-", 1, seed))


def _written(
    generator: Causal, passages: Sequence[Passage], advance: Callable[[int], None]
) -> dict[str, str]:
    from qontext.queries.generators import clean

    questions: dict[str, str] = {}
    for place, written in generator(list(passages)):
        for question in clean(written, passages[place], Counter()):
            questions[passages[place].id] = question
        advance(1)
    return {passage.id: questions[passage.id] for passage in passages if passage.id in questions}
