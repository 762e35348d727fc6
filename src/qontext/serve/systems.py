"""The systems of a server. A directory of `adapt` becomes several systems: NAME is the recommended one, NAME/bm25,
NAME/dense, NAME/hybrid and, with bits of tokens, NAME/tokens are its parts. Vectors and indexes are one system each. All of
them are used by one thread."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from qontext.corpus.sources.several import FILE, read_listing
from qontext.data.places import Found, Place
from qontext.frame.errors import QontextError
from qontext.models.folder import TextKind
from qontext.retrieve.ask.evidence import Evidence, evidence
from qontext.retrieve.ask.prepared import cache_of, is_documents
from qontext.retrieve.ask.questions import GroupBy, by_document, rank, text_of
from qontext.retrieve.ask.snippets import SNIPPET, snippet
from qontext.retrieve.directory import is_adapted
from qontext.retrieve.index import Array
from qontext.retrieve.open import AdaptedFolder, Opening, SearchableFolder, open_path
from qontext.retrieve.query_encoder import LazyReranker
from qontext.retrieve.rankers import Among, PairReranked, Ranker, everything
from qontext.retrieve.system import RERANKER_WEIGHT, System
from qontext.serve.errors import answering
from qontext.serve.passages import FieldFilter, Passages

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RERANK_DEPTH = 50


class Matched(NamedTuple):
    """The part of a result that answers the question: the snippet, its place, and its best sentence, if a word is in it."""

    text: str
    place: Place
    sentence: str


class ServedHit(NamedTuple):
    """A result: a passage by its number in the collection, and its score."""

    number: int
    score: float


Ranking = list[ServedHit]
"""Best first."""


@dataclass(frozen=True)
class ServedSystem:
    """A searchable system: a name, a label for users, what is searched, and how."""

    name: str
    label: str
    collection: SearchableFolder
    passages: Passages
    ranker: Ranker
    _numbers: dict[int, Array] = field(default_factory=dict)
    """The identity of each index → [P] the numbers of its passages."""

    @property
    def encoder(self) -> Any:
        """The encoder of one vector for each text, if there is one."""
        own = self.collection.dense
        return None if own is None or own.index.reads == "packed" else own.encoder

    @property
    def directory(self) -> AdaptedFolder | None:
        """The directory of `adapt`, if it is one."""
        return self.collection if isinstance(self.collection, AdaptedFolder) else None

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

    def evidence(self, question: str, hits: Ranking, only: FieldFilter | None = None) -> list[Evidence]:
        """The evidence for the hits, in a search of the passages that the filter accepts."""
        pairs = [(hit, self.passages[hit.number]) for hit in hits]
        opened = [Found(p, sentences=tuple(self.passages.sentences(hit.number))) for hit, p in pairs]
        with answering():
            return evidence(text_of(question), opened, self.ranker, among=self._among(only))

    def matched(self, hit: ServedHit, question: str, most: int = SNIPPET) -> Matched:
        """The snippet of a result, and the place of its best sentence."""
        text, lexical = self.passages[hit.number].text, self.collection.lexical
        how: dict[str, Any] = {"rarity": None if lexical is None else lexical.bm25.rarity, "most": most}
        sentences = self.passages.sentences(hit.number)
        shown = snippet(text_of(question), text, sentences, analyzer=self.analyzer, **how)
        place = self.passages.place(hit.number).within(text, shown.begin, shown.end)
        sentence = "" if shown.is_whole else " ".join(text[shown.begin : shown.end].split())
        return Matched(shown.text, place, sentence)

    def search(
        self,
        texts: Sequence[str],
        k: int,
        only: FieldFilter | None = None,
        kind: TextKind = "query",
        group: GroupBy = "passage",
    ) -> list[Ranking]:
        """For each text the best k passages that the filter accepts, or the best one of each of k documents."""
        if only and not self.passages.mask(only).any():
            return [[] for _ in texts]
        k = min(k, self.passages.documents_of(only) if group == "document" else len(self.passages))
        queries, number = {str(number): text for number, text in enumerate(texts)}, self.passages.number_of
        ranked = partial(rank, self.collection, among=self._among(only), kind=kind, ranker=self.ranker)

        def find(ids: set[str]) -> dict[str, Found]:
            return {id: Found(self.passages[number(id)]) for id in ids}

        with answering():
            run = ranked(queries, k) if group == "passage" else by_document(ranked, queries, k, find)
        return [[ServedHit(number(hit.passage), hit.score) for hit in run.get(q, ())] for q in queries]

    def _among(self, only: FieldFilter | None) -> Among:
        """The passages of an index that the filter accepts."""
        if not only:
            return everything
        accepted = self.passages.mask(only)

        def rows(index: Any) -> Any:
            if id(index) not in self._numbers:
                self._numbers[id(index)] = self.passages.numbers(index.ids)
            return accepted[self._numbers[id(index)]]

        return rows


def reranked(system: ServedSystem, reranker: LazyReranker, name: str) -> ServedSystem:
    """The system's best results, fused with the scores of a cross-encoder."""

    def find(ids: set[str]) -> Any:
        return {id: system.passages[system.passages.number_of(id)] for id in ids}

    ranker = PairReranked(system.ranker, reranker, find, RERANK_DEPTH, RERANKER_WEIGHT)
    label = f"{system.label}, reranked by {reranker.name}"
    return ServedSystem(name, label, system.collection, system.passages, ranker)


@dataclass
class Opener:
    """Opens directories; models and passages that several of them share are loaded once."""

    device: str = "auto"
    precision: Any = "auto"
    passages: str | None = None
    """The path of the passages, if not the recorded one."""

    def __post_init__(self) -> None:
        self.opening = Opening(self.device, self.precision, is_resident=True)

    def open_all(self, directories: Sequence[str]) -> list[ServedSystem]:
        """The systems of all directories, each as DIR or NAME=DIR. Models that did not change since an earlier call stay."""
        pairs = [_named(text) for text in directories]
        names = [name for name, _ in pairs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise QontextError(
                f"two directories have the name {twice!r}", remedy="Rename one of them: NAME=DIR."
            )
        self._read: dict[str, Passages] = {}
        return [system for name, path in pairs for system in self.open(name, path)]

    def open(self, name: str, path: str) -> list[ServedSystem]:
        """The systems of one directory, or of documents as they are."""
        opened = open_path(served_path(path), self.opening, self.passages)
        place = os.path.realpath(self.passages or opened.passages_place)
        own = vars(self).setdefault("_read", {})
        passages = own[place] = own.get(place) or Passages.read(place)
        systems = _systems(opened) if isinstance(opened, AdaptedFolder) else {"": (opened.label, None)}
        numbers: dict[int, Array] = {}
        return [
            ServedSystem(
                f"{name}/{part}" if part else name, label, opened, passages, opened.ranker(system), numbers
            )
            for part, (label, system) in systems.items()
        ]


def _systems(opened: AdaptedFolder) -> dict[str, tuple[str, System | None]]:
    """Name → (label, system) of a directory; the recommended one, which has no name, first."""
    encoder = "start" if opened.about.get("encoder") == "start" else "adapted"
    words = System(words=True)
    label = f"the {System(encoder).label}"  # type: ignore[arg-type]
    labels = {words: ("bm25", "BM25")}
    if opened.dense is not None:
        hybrid = System(encoder, words=True)  # type: ignore[arg-type]
        labels |= {hybrid.dense: ("dense", label), hybrid: ("hybrid", f"BM25 and {label}")}
    best = opened.system if opened.system.encoder is None else opened.system.with_encoder(encoder)  # type: ignore[arg-type]
    if best.tokens:
        first = System(best.encoder, words=True, tokens=True)
        labels[first] = ("tokens", f"BM25 and {label}, then its tokens")
    if best.reranked:
        labels[best] = ("last", f"{labels[best.first_stage][1]}, then the cross-encoder")
    others = {name: (shown, one) for one, (name, shown) in labels.items() if one != best}
    return {"": (labels[best][1], best), **others}


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
