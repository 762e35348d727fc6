"""Directories → searchable systems. Only this module knows the directories of `adapt`, `encode` and `index`.
A directory of `adapt` becomes several systems: NAME is the recommended one, NAME/bm25, NAME/dense, NAME/hybrid and, with
bits of tokens, NAME/tokens are its parts. Vectors and indexes are one system each. All of them are used by one thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qontext.data.places import Place
from qontext.data.runs import Run
from qontext.frame.artifacts import Artifact, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.inputs import find
from qontext.frame.locks import Reading
from qontext.retrieve.base import CANDIDATES
from qontext.retrieve.index import How, check_found
from qontext.retrieve.index.load import open_index, open_searchable
from qontext.retrieve.searcher import (
    TOKEN_WEIGHT,
    TOKENS,
    dense_index,
    is_adapted,
    model_of,
    open_adapted,
)
from qontext.retrieve.snippets import SNIPPET, Rarity, snippet
from qontext.retrieve.system import System as Combination
from qontext.retrieve.token_bits import TokenBits
from qontext.retrieve.where import Mask, passages_of
from qontext.serve.errors import Failed
from qontext.serve.held import held
from qontext.serve.models import Encoder, Kind, PackedEncoder, Reranker
from qontext.serve.passages import Filter, Passages

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RERANK_DEPTH = 50
SERVED = "Give the output of 'qontext adapt', 'qontext encode' or 'qontext index'."
Array = np.ndarray[Any, Any]


class Hit(NamedTuple):
    """A result: a passage by its number in the collection, and its score."""

    number: int
    score: float


Ranking = list[Hit]
"""Best first."""
Rank = Callable[[Sequence[str], int, Kind, Mask | None], list[Ranking]]
"""(texts, k, type of the texts, [P] which passages may be returned) → the best k for each text."""


@dataclass(frozen=True)
class System:
    """A searchable system: a name, a label for users, the passages, and the ranking function."""

    name: str
    label: str
    passages: Passages
    rank: Rank
    encoder: Encoder | None = None
    analyzer: str = "english"
    reading: Reading | None = None
    """Keeps an update of `adapt` from removing the index."""
    rarity: Rarity | None = None
    """The rarity of a term in the passages, if there is a BM25 index."""

    def matched(self, hit: Hit, question: str, most: int = SNIPPET) -> tuple[str, Place]:
        """The snippet of a result, and the place of its best sentence."""
        text = self.passages[hit.number].text
        how: dict[str, Any] = {"analyzer": self.analyzer, "rarity": self.rarity, "most": most}
        shown = snippet(question, text, self.passages.sentences(hit.number), **how)
        return shown.text, self.passages.place(hit.number).within(text, shown.begin, shown.end)

    def search(
        self, texts: Sequence[str], k: int, only: Filter | None = None, kind: Kind = "query"
    ) -> list[Ranking]:
        """For each text the best k passages that the filter accepts."""
        accepted = self.passages.mask(only) if only else None
        if accepted is not None and not accepted.any():
            return [[] for _ in texts]
        try:
            return self.rank(texts, min(k, len(self.passages)), kind, accepted)
        except QontextError as error:  # not a mistake of the client: conditions were checked above
            raise Failed(error.message, place=error.place, remedy=error.remedy) from error


@dataclass
class Opener:
    """Opens directories; models and passages that several of them share are loaded once."""

    device: str = "auto"
    precision: Any = "auto"
    passages: str | None = None
    """The path of the passages, if not the recorded one."""

    def __post_init__(self) -> None:
        self._passages: dict[str, Passages] = {}
        self._encoders: dict[tuple[str, int | None, int | None, int | None], Encoder] = {}

    def open_all(self, directories: Sequence[str]) -> list[System]:
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
        return [system for name, path in paths_by_name.items() for system in self.open(name, path)]

    def open(self, name: str, path: str) -> list[System]:
        """The systems of one directory."""
        if is_adapted(path):
            return self._open_adapted(name, Path(path))
        if (Path(path) / "plan.json").is_file():
            raise QontextError(
                "this directory of adapt is not finished",
                place=path,
                remedy="Run its 'qontext adapt' again.",
            )
        try:
            artifact = open_searchable(path)
        except QontextError as error:
            is_other = error.message.startswith("not searchable")
            raise QontextError(
                error.message, place=error.place, remedy=SERVED if is_other else error.remedy
            ) from None
        index, entry = open_index(path, How(device=self.device))
        index = held(index)
        passages = self._read(self.passages or passages_of(artifact))
        if entry is None:
            rank = _rank(index, passages)
            how: dict[str, Any] = {"analyzer": _analyzer(index), "rarity": _rarity(index)}
            return [System(name, _label(artifact), passages, rank, **how)]
        remedy = "Restore it, or encode the passages again."
        encoder_path = find(entry, artifact.path, "the encoder of the passages", remedy=remedy)
        if index.reads == "packed":
            form: dict[str, Any] = {"device": self.device, "precision": self.precision}
            packed = PackedEncoder(encoder_path, passage=_passage_length(artifact), **form)
            return [System(name, index.tag, passages, _rank(index, passages, packed))]
        encoder = self._encoder(encoder_path, None, _passage_length(artifact), index.dimension)
        if encoder.dimension != index.dimension:
            raise QontextError(
                f"the encoder has {encoder.dimension} dimensions, the index has {index.dimension}",
                place=encoder_path,
            )
        return [System(name, _label(artifact), passages, _rank(index, passages, encoder), encoder)]

    def _open_adapted(self, name: str, root: Path) -> list[System]:
        about, reading, index = open_adapted(root)
        passages = self._read(str(index / "passages"))
        encoder = self._encoder(model_of(root), about["read_tokens"], about["read_tokens"])
        bm25, _ = open_index(index / "bm25")
        dense, _ = open_index(dense_index(index), How(device=self.device))
        words, vectors = _rank(bm25, passages), _rank(held(dense), passages, encoder)
        both = _hybrid(words, vectors, about["weights"], passages)
        recommended = Combination.parse(about["system"])
        encoder_label = f"the {Combination(about.get('encoder', 'adapted')).label}"
        parts = {
            "bm25": ("BM25", words), "dense": (encoder_label, vectors), "hybrid": (f"BM25 and {encoder_label}", both)
        }  # fmt: skip
        best = "hybrid" if recommended.words else "dense"
        if recommended.encoder is None:
            best = "bm25"
        if recommended.tokens:
            best, bits = "tokens", TokenBits(index / TOKENS)
            by_tokens = _by_tokens(both, bits, encoder, about.get("token_weight", TOKEN_WEIGHT), passages)
            parts["tokens"] = (f"BM25 and {encoder_label}, then its tokens", by_tokens)

        def system(name: str, part: str) -> System:
            label, rank = parts[part]
            return System(name, label, passages, rank, encoder, _analyzer(bm25), reading, _rarity(bm25))

        return [system(name, best), *(system(f"{name}/{part}", part) for part in parts if part != best)]

    def _read(self, source: str) -> Passages:
        path = os.path.realpath(self.passages or source)
        if path not in self._passages:
            self._passages[path] = Passages.read(path)
        return self._passages[path]

    def _encoder(
        self, path: str, query: int | None, passage: int | None, dimensions: int | None = None
    ) -> Encoder:
        """The encoder whose vectors have at most this many dimensions."""
        key = (path, query, passage, dimensions)
        if key not in self._encoders:
            self._encoders[key] = Encoder(
                path,
                device=self.device,
                precision=self.precision,
                lengths={"query": query, "passage": passage},
                dimensions=dimensions,
            )
        return self._encoders[key]


def reranked(system: System, reranker: Reranker, name: str) -> System:
    """The system's best results, reranked by the cross-encoder."""

    def rank(texts: Sequence[str], k: int, kind: Kind, accepted: Mask | None) -> list[Ranking]:
        rankings = system.rank(texts, max(k, RERANK_DEPTH), kind, accepted)
        pairs = [
            (text, system.passages[hit.number])
            for text, ranking in zip(texts, rankings)
            for hit in ranking[:RERANK_DEPTH]
        ]
        scores = iter(reranker.scores(pairs).tolist() if pairs else [])
        reordered = []
        for ranking in rankings:
            scored = [Hit(hit.number, next(scores)) for hit in ranking[:RERANK_DEPTH]]
            scored.sort(key=lambda hit: -hit.score)  # of equal scores, the better rank is first
            # Results without a score follow below the scored ones.
            rest = [Hit(hit.number, -float(place)) for place, hit in enumerate(ranking[RERANK_DEPTH:], 1)]
            reordered.append([*scored, *rest][:k])
        return reordered

    return replace(system, name=name, label=f"{system.label}, reranked by {reranker.name}", rank=rank)


def _rank(index: Any, passages: Passages, encoder: Encoder | PackedEncoder | None = None) -> Rank:
    """Searches an index with texts, or with vectors of the encoder."""
    numbers_of = passages.numbers(index.ids)

    def rank(texts: Sequence[str], k: int, kind: Kind, accepted: Mask | None) -> list[Ranking]:
        queries: Any = texts if encoder is None else encoder.encode(texts, kind)[0]
        rows = None if accepted is None else accepted[numbers_of]
        numbers, scores = check_found(index.search(queries, k, rows), index, len(texts), k)
        return _rankings(numbers_of[numbers], scores, numbers >= 0)

    return rank


def _rankings(numbers: Array, scores: Array, is_hit: Array) -> list[Ranking]:
    return [
        [Hit(number, score) for number, score, hit in zip(*row) if hit]
        for row in zip(numbers.tolist(), scores.tolist(), is_hit.tolist())
    ]


def _hybrid(words: Rank, vectors: Rank, weights: Any, passages: Passages) -> Rank:
    from qontext.retrieve.fuse import Rows

    def rank(texts: Sequence[str], k: int, kind: Kind, accepted: Mask | None) -> list[Ranking]:
        depth = max(k, CANDIDATES)
        runs = [_run(part(texts, depth, kind, accepted), passages) for part in (words, vectors)]
        fused = Rows(runs, "zscore", 60).fused(weights, k)
        return _rankings_of(fused, len(texts), passages)

    return rank


def _by_tokens(found: Rank, bits: TokenBits, encoder: Encoder, weight: float, passages: Passages) -> Rank:
    """What another system found, compared token by token, too."""

    def rank(texts: Sequence[str], k: int, kind: Kind, accepted: Mask | None) -> list[Ranking]:
        run = _run(found(texts, max(k, CANDIDATES), kind, accepted), passages)
        vectors = encoder.encode_each_token([texts[int(query)] for query in run.queries], kind)
        return _rankings_of(bits.reranked(run, vectors, weight).top(k), len(texts), passages)

    return rank


def _rankings_of(run: Run, count: int, passages: Passages) -> list[Ranking]:
    """The inverse of `_run`, for so many queries."""
    rankings: list[Ranking] = [[] for _ in range(count)]
    for query in run.queries:
        ids, scores = run.results(query)
        numbers = passages.numbers(np.array(ids, object)).tolist()
        rankings[int(query)] = list(map(Hit, numbers, scores.tolist()))
    return rankings


def _run(rankings: list[Ranking], passages: Passages) -> Run:
    """The rankings as a run whose queries are named by their numbers."""
    rows = [(query, hit) for query, ranking in enumerate(rankings) for hit in ranking]
    numbers, codes = np.unique(np.array([hit.number for _, hit in rows], np.int64), return_inverse=True)
    ids = np.array([passages[number].id for number in numbers.tolist()], object)
    queries = np.array([query for query, _ in rows], np.int64)
    scores = np.array([hit.score for _, hit in rows], np.float64)
    return Run.from_codes(queries, [str(n) for n in range(len(rankings))], codes, ids, scores)


def _label(artifact: Artifact) -> str:
    backend = "vectors" if artifact.verb == "encode" else str(artifact.config["backend"])
    return "BM25" if backend == "bm25" else backend


def _analyzer(index: Any) -> str:
    """The text analyzer of a lexical index, also used for highlighting."""
    return str(getattr(getattr(index, "bm25", None), "analyzer", "english"))


def _rarity(index: Any) -> Rarity | None:
    return getattr(getattr(index, "bm25", None), "rarity", None)


def _passage_length(artifact: Artifact) -> int | None:
    """The maximum passage length in `encode`; for an index without its vectors, the encoder's limit."""
    if artifact.verb == "index":
        try:
            remedy = "Restore it."
            artifact = open_artifact(find(artifact.inputs["source"], artifact.path, "vectors", remedy=remedy))
        except QontextError:
            return None
    length: int | None = artifact.config.get("max_length")
    return length


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


def path_of(text: str) -> str:
    """The directory of DIR or NAME=DIR."""
    return _named(text)[1]
