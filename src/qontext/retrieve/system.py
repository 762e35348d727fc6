"""The combinations of a search: the words of BM25, the vectors of an encoder, the vectors of its tokens, a cross-encoder.

| name                                   | words | encoder            | tokens | cross-encoder |
|----------------------------------------|-------|--------------------|--------|---------------|
| bm25                                   | yes   |                    |        |               |
| start, adapted                         |       | original, adapted  |        |               |
| hybrid-start, hybrid                   | yes   | original, adapted  |        |               |
| tokens-start, tokens                   | yes   | original, adapted  | yes    |               |
| reranked-start, reranked               | yes   | original, adapted  |        | yes           |
| tokens-reranked-start, tokens-reranked | yes   | original, adapted  | yes    | yes           |

Only this module knows these names, which `adapted.json`, verdicts, runs and steps of recipes record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from qontext.frame.errors import QontextError, did_you_mean

EncoderName = Literal["start", "adapted"]
SystemName = Literal[
    "bm25",
    "start", "hybrid-start", "tokens-start", "reranked-start", "tokens-reranked-start",
    "adapted", "hybrid", "tokens", "reranked", "tokens-reranked",
]  # fmt: skip

WEIGHTS = (0.6, 0.4)
"""Weights of BM25 and of the vectors, without labels to tune them."""
TOKEN_WEIGHT = 0.5
"""Weight of the comparison by tokens beside both."""
RERANKER_WEIGHT = 0.8
"""Weight of a cross-encoder's scores beside those of the system that finds its candidates."""
ENCODERS: tuple[EncoderName, ...] = ("start", "adapted")
_LABELS = {"start": "original encoder", "adapted": "adapted encoder"}


@dataclass(frozen=True)
class System:
    """A combination. Tokens rerank the hits of words and vectors; a cross-encoder reranks the best of what precedes it.

    >>> System.parse("tokens-start")
    System(encoder='start', words=True, tokens=True, reranked=False)
    >>> System("adapted", words=True).name
    'hybrid'
    """

    encoder: EncoderName | None = None
    words: bool = False
    tokens: bool = False
    reranked: bool = False

    @classmethod
    def parse(cls, name: str) -> System:
        """The system with this name."""
        if name not in _BY_NAME:
            raise QontextError(f"unknown system {name!r}", remedy=did_you_mean(name, _BY_NAME))
        return _BY_NAME[name]

    @property
    def name(self) -> str:
        """Its recorded name."""
        if self.encoder is None:
            return "bm25"
        if not self.words:
            return self.encoder
        stages = ["tokens"] * self.tokens + ["reranked"] * self.reranked or ["hybrid"]
        return "-".join([*stages, *["start"] * (self.encoder == "start")])

    @property
    def label(self) -> str:
        """Its name for users."""
        parts = ["BM25"] * self.words + ([_LABELS[self.encoder]] if self.encoder else [])
        return " + ".join([*parts, *["tokens"] * self.tokens, *["cross-encoder"] * self.reranked])

    @property
    def cost(self) -> int:
        """The order of its cost. An encoder costs storage and time for its vectors, BM25 next to nothing more. Tokens
        cost storage, and a cross-encoder the most time for a question."""
        return 3 if self.reranked else 2 if self.tokens else 1 if self.encoder else 0

    @property
    def dense(self) -> System:
        """Its encoder alone."""
        return System(self.encoder)

    @property
    def first_stage(self) -> System:
        """The system without its last stage, which finds the passages that this stage compares."""
        return replace(self, reranked=False) if self.reranked else replace(self, tokens=False)

    def with_encoder(self, encoder: EncoderName) -> System:
        """The same combination with this encoder."""
        return replace(self, encoder=encoder)


SYSTEMS = (
    System(words=True),
    *(
        System(encoder, *stages)
        for encoder in ENCODERS
        for stages in (
            (False,),
            (True,),
            (True, True),
            (True, False, True),
            (True, True, True),
        )
    ),
)
"""All systems, baselines first."""
_BY_NAME = {system.name: system for system in SYSTEMS}


def label_of(name: str) -> str:
    """The label of the system with this name; other names are their own label."""
    return _BY_NAME[name].label if name in _BY_NAME else name
