"""Shared by the retrievers of all frameworks: opening a directory, and results as plain values."""

from __future__ import annotations

from typing import Any, NamedTuple

from qontext.frame.errors import QontextError
from qontext.serve.passages import FieldFilter
from qontext.serve.systems import Opener, ServedSystem


class RetrievedPassage(NamedTuple):
    """A passage with its score and metadata."""

    id: str
    text: str
    score: float
    metadata: dict[str, Any]


class SearchSource:
    """A system of an output directory of `adapt`, `encode` or `index`."""

    def __init__(self, directory: str, system: str | None = None, device: str = "auto") -> None:
        systems = {one.name: one for one in Opener(device).open_all([directory])}
        if system is not None and system not in systems:
            raise QontextError(f"unknown system {system!r}", remedy=f"Choose from: {', '.join(systems)}.")
        self.system: ServedSystem = systems[system] if system else next(iter(systems.values()))

    def results(self, question: str, k: int, folder: str | None = None) -> list[RetrievedPassage]:
        """The best k passages, best first."""
        if not question.strip():
            raise QontextError("the question is empty")
        passages = self.system.passages
        results = []
        for hit in self.system.search([question], k, FieldFilter(folder))[0]:
            passage = passages[hit.number]
            position, _ = passages.position(hit.number)
            snippet, place, _ = self.system.matched(hit, question)
            known = place.as_json()
            metadata = {
                **known.pop("metadata", {}),
                **known,
                "place": str(place),
                "snippet": snippet,
                "document": passage.doc,
                "title": passage.title,
                "passage": position,
                "score": hit.score,
            }
            results.append(RetrievedPassage(passage.id, passage.text, hit.score, metadata))
        return results
