"""Directories → searchable systems. A directory of `adapt` becomes several systems: NAME is the recommended one, NAME/bm25,
NAME/dense, NAME/hybrid and, with bits of tokens, NAME/tokens are its parts. If NAME ends with a cross-encoder, no other
system has it. Vectors and indexes are one system each. All of them are used by one thread."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qontext.corpus.sources.several import FILE, read_listing
from qontext.data.places import Found, Place
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError
from qontext.models.folder import TextKind, locate
from qontext.models.reference import model_digest
from qontext.models.retriever import Retriever
from qontext.retrieve.ask.evidence import Evidence, evidence, parts_of
from qontext.retrieve.ask.prepared import cache_of, is_documents
from qontext.retrieve.ask.questions import GroupBy, SystemParts, by_document, rank, text_of
from qontext.retrieve.directory import PLAN, dense_index, is_adapted, reranker_of
from qontext.retrieve.encoded.vectors import pooling_of, prompts_of
from qontext.retrieve.index import Array, How, Index
from qontext.retrieve.index.lexical import LexicalIndex
from qontext.retrieve.index.load import encoder_of, fit, open_index, open_searchable, passage_length
from qontext.retrieve.open import AdaptedFolder
from qontext.retrieve.rankers import Among, IndexRanker, Ranker, everything
from qontext.retrieve.snippets import SNIPPET, snippet
from qontext.retrieve.system import EncoderName, System
from qontext.retrieve.where import passages_of
from qontext.serve.errors import answering
from qontext.serve.models import Reranker, ServedEncoder
from qontext.serve.passages import FieldFilter, Passages

if TYPE_CHECKING:
    from qontext.models.cross_encoder import CrossEncoder

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RERANK_DEPTH = 50
SCANNED = 8
"""Queries that one pass over the vectors answers faster than a matrix product, which pads them to a multiple of so many."""
SERVED = "Give the output of 'qontext adapt', 'qontext encode' or 'qontext index'."


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
    """A searchable system: a name, a label for users, the passages, and their ranker."""

    name: str
    label: str
    passages: Passages
    ranker: Ranker
    numbers: Mapping[int, Array]
    """The identity of each index of the ranker → [P] the numbers of its passages."""
    encoder: ServedEncoder | None = None
    lexical: LexicalIndex | None = None
    """The BM25 index, if there is one."""
    reranker: Reranker | None = None
    directory: AdaptedFolder | None = None
    """The open directory of `adapt`, which keeps an update from removing the index."""

    @property
    def analyzer(self) -> str:
        """The text analyzer, also used for highlighting."""
        return self.lexical.bm25.analyzer if self.lexical is not None else "english"

    @property
    def parts(self) -> SystemParts:
        """The rankers that answer sub-queries."""
        folder, own = self.directory, parts_of(self.ranker)
        if folder is None:
            words, meaning = (
                partial(own.__getitem__, name) if name in own else None for name in ("words", "meaning")
            )
            return SystemParts(lambda: self.ranker, words, meaning)
        dense = None if folder.system.encoder is None else lambda: folder.dense
        return SystemParts(lambda: self.ranker, lambda: folder.words, dense)

    @property
    def sources(self) -> dict[str, str]:
        """The sources of its documents → what they are about."""
        file = None if self.directory is None else self.directory.root / FILE
        if file is None or not file.is_file():
            return {}
        return {name: entry.get("about", "") for name, entry in read_listing(file).items()}

    def evidence(self, question: str, hits: Ranking, only: FieldFilter | None = None) -> list[Evidence]:
        """The evidence for the hits, in a search of the passages that the filter accepts."""
        pairs = [(hit, self.passages[hit.number]) for hit in hits]
        opened = [Found(p, sentences=tuple(self.passages.sentences(hit.number))) for hit, p in pairs]
        among = self._among(only)
        with answering():
            return evidence(text_of(question), opened, self.ranker, among=among)

    def matched(self, hit: ServedHit, question: str, most: int = SNIPPET) -> Matched:
        """The snippet of a result, and the place of its best sentence."""
        question = text_of(question)
        text = self.passages[hit.number].text
        rarity = None if self.lexical is None else self.lexical.bm25.rarity
        how: dict[str, Any] = {"analyzer": self.analyzer, "rarity": rarity, "most": most}
        shown = snippet(question, text, self.passages.sentences(hit.number), **how)
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
        rankings = partial(self._rankings, texts, kind, self._among(only))
        with answering():
            if self.reranker is None:
                return rankings(k, group)
            found = rankings(max(k, RERANK_DEPTH))
            if group == "document":  # the best passages, and those of further documents
                found = [[*best, *others] for best, others in zip(found, rankings(k, group))]
            found = _reranked(texts, found, self.reranker, self.passages)
        return [(self._by_document(one) if group == "document" else one)[:k] for one in found]

    def _among(self, only: FieldFilter | None) -> Among:
        """The passages of an index that the filter accepts."""
        if not only:
            return everything
        accepted = self.passages.mask(only)
        return lambda index: accepted[self.numbers[id(index)]]

    def _rankings(
        self, texts: Sequence[str], kind: TextKind, among: Among, k: int, group: GroupBy = "passage"
    ) -> list[Ranking]:
        queries = {str(number): text for number, text in enumerate(texts)}
        number, ranked = self.passages.number_of, partial(rank, self.parts, among=among, kind=kind)

        def find(ids: set[str]) -> dict[str, Found]:
            return {id: Found(self.passages[number(id)]) for id in ids}

        run = ranked(queries, k) if group == "passage" else by_document(ranked, queries, k, find)
        return [[ServedHit(number(hit.passage), hit.score) for hit in run.get(q, ())] for q in queries]

    def _by_document(self, ranking: Ranking) -> Ranking:
        best: dict[str, ServedHit] = {}
        for hit in ranking:
            best.setdefault(self.passages[hit.number].doc, hit)
        return list(best.values())


def reranked(system: ServedSystem, reranker: Reranker, name: str) -> ServedSystem:
    """The system's best results, reranked by the cross-encoder."""
    label = f"{system.label}, reranked by {reranker.name}"
    return replace(system, name=name, label=label, reranker=reranker)


def _reranked(
    texts: Sequence[str], rankings: list[Ranking], reranker: Reranker, passages: Passages
) -> list[Ranking]:
    pairs = [
        (text, passages[hit.number])
        for text, ranking in zip(texts, rankings)
        for hit in ranking[:RERANK_DEPTH]
    ]
    scores = iter(reranker.scores(pairs).tolist() if pairs else [])
    reordered = []
    for ranking in rankings:
        scored = [ServedHit(hit.number, next(scores)) for hit in ranking[:RERANK_DEPTH]]
        scored.sort(key=lambda hit: -hit.score)  # of equal scores, the better rank is first
        # Results without a score follow below the scored ones.
        rest = [ServedHit(hit.number, -float(place)) for place, hit in enumerate(ranking[RERANK_DEPTH:], 1)]
        reordered.append([*scored, *rest])
    return reordered


@dataclass
class Opener:
    """Opens directories; models and passages that several of them share are loaded once."""

    device: str = "auto"
    precision: Any = "auto"
    passages: str | None = None
    """The path of the passages, if not the recorded one."""

    def __post_init__(self) -> None:
        self._passages: dict[str, Passages] = {}
        self._models: dict[tuple[Any, ...], Any] = {}
        self._earlier: dict[tuple[Any, ...], Any] = {}

    def again(self) -> Opener:
        """An opener of the same directories, which changed: models that did not are not loaded again."""
        other = replace(self)
        other._earlier = {**self._earlier, **self._models}
        return other

    def open_all(self, directories: Sequence[str]) -> list[ServedSystem]:
        """The systems of all directories, each as DIR or NAME=DIR."""
        paths_by_name: dict[str, str] = {}
        for text in directories:
            name, path = _named(text)
            if name in paths_by_name:
                raise QontextError(
                    f"two directories have the name {name!r}: {paths_by_name[name]} and {path}",
                    remedy="Rename one of them: NAME=DIR.",
                )
            paths_by_name[name] = path
        systems = [system for name, path in paths_by_name.items() for system in self.open(name, path)]
        self._earlier = {}  # what is still wanted is among the models
        return systems

    def open(self, name: str, path: str) -> list[ServedSystem]:
        """The systems of one directory, or of documents that nobody prepared."""
        path = served_path(path)
        if is_adapted(path):
            return self._open_adapted(name, path)
        if (Path(path) / PLAN).is_file():
            raise QontextError(
                "this directory of adapt is not finished",
                place=path,
                remedy="Run its 'qontext adapt' again.",
            )
        try:
            artifact = open_searchable(path)
        except QontextError as error:
            remedy = SERVED if error.message.startswith("not searchable") else error.remedy
            raise QontextError(error.message, place=error.place, remedy=remedy) from None
        index, entry = open_index(path, self.how)
        passages = self._read(self.passages or passages_of(artifact))
        parts: dict[str, Any] = {"passages": passages, "numbers": {id(index): passages.numbers(index.ids)}}
        if entry is None:
            lexical = index if isinstance(index, LexicalIndex) else None
            return [ServedSystem(name, _label(artifact), ranker=IndexRanker(index), lexical=lexical, **parts)]
        encoder_path, length = encoder_of(entry, path), passage_length(artifact)
        prompts = prompts_of(artifact)
        if index.reads == "packed":
            form: dict[str, Any] = {"device": self.device, "precision": self.precision, "prompts": prompts}
            packed = Retriever(encoder_path, max_length=length, packed=True, **form)
            fit(packed, index, encoder_path)
            return [ServedSystem(name, index.tag, ranker=IndexRanker(index, packed), **parts)]
        how = {"prompts": prompts, "pooling": pooling_of(artifact)}
        encoder = self.encoder(encoder_path, None, length, index.dimension, how)
        fit(encoder.retriever, index, encoder_path)
        ranker = IndexRanker(index, encoder)
        return [ServedSystem(name, _label(artifact), ranker=ranker, encoder=encoder, **parts)]

    def _open_adapted(self, name: str, path: str) -> list[ServedSystem]:
        opened = _ServedFolder(path, self)
        passages = self._read(str(opened.folder / "passages"))
        if not dense_index(opened.folder).exists():  # of a searcher that was saved without an encoder
            words: dict[str, Any] = {"lexical": opened.lexical, "directory": opened}
            numbers = {id(opened.lexical): passages.numbers(opened.lexical.ids)}
            return [ServedSystem(name, "BM25", passages, opened.words, numbers, **words)]
        indexes: list[Index] = [opened.lexical, opened.index]
        numbers = {id(index): passages.numbers(index.ids) for index in indexes}
        encoder: EncoderName = "start" if opened.about.get("encoder") == "start" else "adapted"
        label = f"the {System(encoder).label}"
        labels = {
            System(words=True): ("bm25", "BM25"),
            System(encoder): ("dense", label),
            System(encoder, words=True): ("hybrid", f"BM25 and {label}"),
        }
        if opened.system.tokens:
            by_tokens = System(encoder, words=True, tokens=True)
            labels[by_tokens] = ("tokens", f"BM25 and {label}, then its tokens")
        if opened.system.reranked:
            before = labels[opened.system.with_encoder(encoder).first_stage][1]
            last = System(encoder, words=True, tokens=opened.system.tokens, reranked=True)
            labels[last] = ("last", f"{before}, then the cross-encoder")
        best = opened.system if opened.system.encoder is None else opened.system.with_encoder(encoder)

        def system(name: str, combination: System) -> ServedSystem:
            ranker, shown = opened.ranker(combination), labels[combination][1]
            return ServedSystem(
                name, shown, passages, ranker, numbers, opened.encoder, opened.lexical, directory=opened
            )

        others = (one for one in labels if one != best)
        return [system(name, best), *(system(f"{name}/{labels[one][0]}", one) for one in others)]

    @property
    def how(self) -> How:
        """The settings of exact search."""
        return How(device=self.device, few=SCANNED, in_memory=True)

    def _read(self, source: str) -> Passages:
        path = os.path.realpath(self.passages or source)
        if path not in self._passages:
            self._passages[path] = Passages.read(path)
        return self._passages[path]

    def encoder(
        self, path: str, query: int | None, passage: int | None, dimensions: int | None, how: dict[str, Any]
    ) -> ServedEncoder:
        """The encoder for an index of so many dimensions, with its prompts and pooling."""
        form: dict[str, Any] = {"device": self.device, "precision": self.precision, **how}
        form["lengths"] = {"query": query, "passage": passage}
        key = (query, passage, dimensions, str(how))
        encoder: ServedEncoder = self._model(path, key, lambda: ServedEncoder(path, **form))
        return encoder

    def cross_encoder(self, path: str) -> CrossEncoder:
        """The cross-encoder of a directory of `adapt`."""
        from qontext.models.cross_encoder import CrossEncoder

        form: dict[str, Any] = {"device": self.device, "precision": self.precision}
        model: CrossEncoder = self._model(path, ("pairs",), lambda: CrossEncoder(path, **form))
        return model

    def _model(self, path: str, settings: tuple[Any, ...], load: Callable[[], Any]) -> Any:
        """The model at the path with these settings; another one if its content changed."""
        key = (path, model_digest(locate(path).root), *settings)
        if key not in self._models:
            self._models[key] = self._earlier[key] if key in self._earlier else load()
        return self._models[key]


class _ServedFolder(AdaptedFolder):
    """A directory of `adapt` whose encoder may be that of others, too, and whose vectors are in memory."""

    def __init__(self, root: str, opener: Opener) -> None:
        super().__init__(root, device=opener.device)
        self._opener = opener

    @cached_property
    def encoder(self) -> ServedEncoder:
        how = {"prompts": self.prompts, "pooling": None}
        return self._opener.encoder(self.model, self.read_tokens, self.read_tokens, None, how)

    @cached_property
    def index(self) -> Index:
        return open_index(dense_index(self.folder), self._opener.how)[0]

    @cached_property
    def cross_encoder(self) -> CrossEncoder:
        return self._opener.cross_encoder(reranker_of(self.root, self.about))


def _label(artifact: Artifact) -> str:
    backend = "vectors" if artifact.verb == "encode" else str(artifact.config["backend"])
    return "BM25" if backend == "bm25" else backend


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
