"""The result of `adapt` as a Python object: a searcher with its verdict."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qontext.adapt.verdict import Verdict
from qontext.frame.errors import QontextError
from qontext.retrieve.directory import read_adapted
from qontext.retrieve.searcher import Searcher


class Adapted(Searcher):
    """A finished directory of `adapt`: a `Searcher` of the recommended system, with the verdict that recommends it.

    While the object exists, an update of the directory leaves its index alone.

    >>> adapted = Adapted("runs/mine")
    >>> adapted.verdict.system in adapted.verdict.scores[adapted.verdict.split]
    True
    >>> adapted("chapter 3", k=1)[0].rank
    1

    Args:
        directory: Output directory of `qontext adapt`.
        device, encoder, trust: As for `Searcher`.
    """

    summary: Mapping[str, Any]
    """The result of the command: verdict, weights, times; of a call of `adapt` also its passages, model and report."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        device: str = "auto",
        encoder: str | None = None,
        trust: bool = False,
        summary: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(directory, device=device, encoder=encoder, trust=trust)
        self.directory = os.fspath(directory)
        self.summary = read_adapted(Path(directory)) if summary is None else summary

    @property
    def verdict(self) -> Verdict:
        """The recommended system, the reasons, and the scores of all systems."""
        if "verdict" not in self.summary:
            raise QontextError("has no verdict: it was not written by adapt", place=self.directory)
        return Verdict(**self.summary["verdict"])

    def __fspath__(self) -> str:
        return self.directory

    def __repr__(self) -> str:
        first = f": {self.verdict.sentences[0]}" if "verdict" in self.summary else ""
        return f"Adapted({self.directory!r}{first})"

    def _repr_html_(self) -> str:
        return self.verdict._repr_html_() if "verdict" in self.summary else html.escape(repr(self))
