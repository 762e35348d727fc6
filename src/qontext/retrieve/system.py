"""The combinations of a search: the words of BM25, the vectors of an encoder, and the vectors of its tokens.

| name                     | words | encoder            | tokens |
|--------------------------|-------|--------------------|--------|
| bm25                     | yes   |                    |        |
| start, adapted           |       | original, adapted  |        |
| hybrid-start, hybrid     | yes   | original, adapted  |        |
| tokens-start, tokens     | yes   | original, adapted  | yes    |

Only this module knows these names, which `adapted.json`, verdicts, runs and steps of recipes record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from qontext.frame.errors import QontextError, did_you_mean

EncoderName = Literal["start", "adapted"]
SystemName = Literal["bm25", "start", "hybrid-start", "tokens-start", "adapted", "hybrid", "tokens"]

ENCODERS: tuple[EncoderName, ...] = ("start", "adapted")
_LABELS = {"start": "original encoder", "adapted": "adapted encoder"}


@dataclass(frozen=True)
class System:
    """A combination. Tokens rerank the hits of words and vectors.

    >>> System.parse("tokens-start")
    System(encoder='start', words=True, tokens=True)
    >>> System("adapted", words=True).name
    'hybrid'
    """

    encoder: EncoderName | None = None
    words: bool = False
    tokens: bool = False

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
        return ("tokens" if self.tokens else "hybrid") + ("-start" if self.encoder == "start" else "")

    @property
    def label(self) -> str:
        """Its name for users."""
        parts = ["BM25"] * self.words + ([_LABELS[self.encoder]] if self.encoder else [])
        return " + ".join([*parts, *["tokens"] * self.tokens])

    @property
    def cost(self) -> int:
        """The order of its cost. An encoder costs storage and time for its vectors, BM25 next to nothing more."""
        return 2 if self.tokens else 1 if self.encoder else 0

    @property
    def dense(self) -> System:
        """Its encoder alone."""
        return System(self.encoder)

    @property
    def first_stage(self) -> System:
        """The system without tokens, which finds the passages whose tokens are compared."""
        return replace(self, tokens=False)

    def with_encoder(self, encoder: EncoderName) -> System:
        """The same combination with this encoder."""
        return replace(self, encoder=encoder)


SYSTEMS = (
    System(words=True),
    *(
        System(encoder, words, tokens)
        for encoder in ENCODERS
        for words, tokens in ((False, False), (True, False), (True, True))
    ),
)
"""All systems, baselines first."""
_BY_NAME = {system.name: system for system in SYSTEMS}


def label_of(name: str) -> str:
    """The label of the system with this name; other names are their own label."""
    return _BY_NAME[name].label if name in _BY_NAME else name
