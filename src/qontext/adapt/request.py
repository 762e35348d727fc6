"""A complete request: the settings of `adapt`, with everything derived from the documents and the machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from qontext.data.passage import TitleRule
from qontext.frame.errors import QontextError
from qontext.retrieve.analysis import LANGUAGES


@dataclass(frozen=True)
class Request:
    """What to adapt, and how to read it. `splits` are evaluated, `labeled` is the number of labeled
    questions to train on. `judged` has the number of labeled questions by split; they are `divided` if the
    labels have no splits of their own. `generate` and `pretrain` are the settings of these stages that do not
    depend on the plan.
    """

    documents: str
    labels: str | None
    splits: tuple[str, ...]
    labeled: int
    encoder: str
    generate: dict[str, Any]
    pretrain: dict[str, Any]
    max_tokens: int
    read_tokens: int
    budget: float
    device: str
    keep: bool
    language: str
    max_labels: int | None = None
    reranker: str | None = None
    processes: int = 1
    judged: dict[str, int] = field(default_factory=dict)
    divided: bool = False
    window: int | None = None
    """Maximum tokens of a window, if passages have a vector for each of their windows."""
    title: TitleRule | None = None
    """What is done with titles; None: what the initial encoder was trained with."""
    question_model: str | None = None
    """What writes the questions to measure with, instead of the generator of the training queries."""
    read_as: tuple[str, ...] = ()
    """ENDING=FORMAT pairs: how files are read whose extension says something else."""

    def without_training_on_labels(self) -> Request:
        """Labels that are not trained on all measure, unless they have splits of their own."""
        if not self.divided:
            return self
        everything = {"test": sum(self.judged.values())}
        splits = tuple(split for split in self.splits if split != "dev")
        return replace(self, splits=splits, labeled=0, max_labels=None, judged=everything, divided=False)

    @property
    def words(self) -> dict[str, Any]:
        """The settings of BM25."""
        return {"analyzer": self.analyzer, **({"title": "leave"} if self.title == "leave" else {})}

    @property
    def analyzer(self) -> str | None:
        """BM25's analyzer for the language, None for the default."""
        return LANGUAGES.get(self.language)


def parse_budget(text: str) -> float:
    """'30m', '2h', '90s' or minutes → seconds."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "m")
    try:
        seconds = float(number) * units[unit]
    except (ValueError, KeyError):
        seconds = 0
    if not 10 <= seconds < float("inf"):
        raise QontextError(
            f"the budget {text!r} is not a length of time", remedy="Use a value such as 90s, 30m or 2h."
        )
    return seconds
