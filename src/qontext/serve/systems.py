"""The systems of a server. A directory of `adapt` becomes several systems: NAME is the recommended one, NAME/bm25,
NAME/dense, NAME/hybrid and, with bits of tokens, NAME/tokens are its parts. Vectors and indexes are one system each. All of
them are used by one thread."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from qontext.corpus.sources.several import FILE, read_listing
from qontext.data.places import Found
from qontext.frame.errors import QontextError
from qontext.retrieve.ask.prepared import cache_of, is_documents
from qontext.retrieve.directory import is_adapted
from qontext.retrieve.index import How
from qontext.retrieve.open import AdaptedFolder, Searchable, open_path
from qontext.retrieve.query_encoder import Opening
from qontext.retrieve.scorers import PairScorer
from qontext.retrieve.searcher import Searcher
from qontext.retrieve.system import RERANKER_WEIGHT, Ranker, Reranked, System
from qontext.serve.passages import Passages

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RERANK_DEPTH = 50
SCANNED = 8
"""Queries that one pass over the vectors answers faster than a matrix product, which pads them to a multiple of so many."""


class ServedSystem(Searcher):
    """A searcher with a name, whose passages are in memory.

    Args:
        reranker: The name of a cross-encoder and the model, which reads the best passages once more.
    """

    collection: Searchable

    def __init__(
        self,
        name: str,
        collection: Searchable,
        system: System,
        passages: Passages,
        reranker: tuple[str, Any] | None = None,
    ) -> None:
        self.name, self.collection, self.system, self.passages = name, collection, system, passages
        self._reranker = reranker

    @cached_property
    def ranker(self) -> Ranker:
        """The ranker of the system."""
        first = super().ranker
        if self._reranker is None:
            return first
        scorer = PairScorer([self._reranker[1]], self.collection.find)
        return Reranked(first, scorer, RERANKER_WEIGHT, RERANK_DEPTH)

    def reranked(self, name: str, reranker: tuple[str, Any]) -> ServedSystem:
        """The system's best results, fused with the scores of a cross-encoder."""
        return ServedSystem(name, self.collection, self.system, self.passages, reranker)

    @property
    def label(self) -> str:
        """The name of the system for users."""
        return super().label + (f", reranked by {self._reranker[0]}" if self._reranker else "")

    @property
    def encoder(self) -> Any:
        """The encoder of one vector for each text, if there is one."""
        own = self.collection.dense
        return None if own is None or own.index.reads == "packed" else own.encoder

    @property
    def analyzer(self) -> str:
        """The text analyzer, also used for highlighting."""
        lexical = self.collection.lexical
        return lexical.bm25.analyzer if lexical is not None else "english"

    @property
    def sources(self) -> dict[str, str]:
        """The sources of its documents → what they are about."""
        file = self.collection.root / FILE
        if not file.is_file():
            return {}
        return {name: entry.get("about", "") for name, entry in read_listing(file).items()}


class Opener:
    """Opens directories; models and passages that several of them share are loaded once.

    Args:
        passages: The path of the passages, if not the recorded one.
    """

    def __init__(self, device: str = "auto", precision: Any = "auto", passages: str | None = None) -> None:
        self.passages = passages
        self.opening = Opening(device, precision, is_resident=True, how=How(device, few=SCANNED))
        self._read_again()

    def _read_again(self) -> None:
        """Read passages again from now on; what is open keeps those that it has."""
        self.read = lru_cache(None)(Passages.read)
        self.opening = replace(self.opening, find=partial(_find, self.read))

    def open_all(self, directories: Sequence[str]) -> list[ServedSystem]:
        """The systems of all directories, each as DIR or NAME=DIR. Models that did not change since an earlier call stay."""
        pairs = [_named(text) for text in directories]
        names = [name for name, _ in pairs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise QontextError(
                f"two directories have the name {twice!r}", remedy="Rename one of them: NAME=DIR."
            )
        self._read_again()
        return [system for name, path in pairs for system in self.open(name, path)]

    def open(self, name: str, path: str) -> list[ServedSystem]:
        """The systems of one directory, or of documents as they are."""
        opened = open_path(served_path(path), self.opening, self.passages)
        passages = self.read(os.path.realpath(opened.passages_place))
        systems = opened.systems if isinstance(opened, AdaptedFolder) else [opened.system]
        return [
            ServedSystem(f"{name}/{_part(system)}" if number else name, opened, system, passages)
            for number, system in enumerate(systems)
        ]


def _find(read: Callable[[str], Passages], place: str, ids: set[str]) -> Mapping[str, Found]:
    return read(os.path.realpath(place)).find(ids)


def _part(system: System) -> str:
    """The name of a system in the names of the API."""
    if system.reranked:
        return "last"
    return (
        "tokens" if system.tokens else "bm25" if not system.encoder else "hybrid" if system.words else "dense"
    )


def _named(text: str) -> tuple[str, str]:
    """'NAME=DIR' → (NAME, DIR); of DIR alone, its last part is the name."""
    name, sign, path = text.partition("=")
    if not sign or not NAME.fullmatch(name) or Path(text).exists():
        path = text
        name = (
            re.sub(r"[^A-Za-z0-9._-]+", "-", Path(os.path.realpath(path)).name).strip("-._")[:64] or "index"
        )
    if name.endswith(("-query", "-passage")):
        raise QontextError(
            f"the name {name!r} ends in -query or -passage, which is reserved for models of the API",
            place=path,
            remedy="Rename it: NAME=DIR.",
        )
    return name, path


def served_path(path: str) -> str:
    """The directory that is opened: that of documents is in the user's cache."""
    return str(cache_of(path)) if is_documents(path) and is_adapted(cache_of(path)) else path


def path_of(text: str) -> str:
    """The directory of DIR or NAME=DIR."""
    return _named(text)[1]
